// Checks that a history of operations on S3 objects is linearizable, key by key.
//
//	linearizability [-timeout 120s] [-picture DIR] HISTORY.jsonl
//
// Prints one JSON object: operations, keys, and which keys' histories are not linearizable or could not be decided in
// time. Exits with 1 if there are any. With -picture, each of those is drawn as an HTML page in DIR.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is what is printed.
type Verdict struct {
	Operations int      `json:"operations"`
	Keys       int      `json:"keys"`
	Illegal    []string `json:"illegal"`
	Undecided  []string `json:"undecided"`
}

func main() {
	timeout := flag.Duration("timeout", 2*time.Minute, "after which a key's history counts as undecided")
	picture := flag.String("picture", "", "folder for pictures of what is not linearizable")
	flag.Parse()
	if flag.NArg() != 1 {
		fail(fmt.Errorf("name one history; -help tells more"))
	}
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fail(err)
	}
	histories, err := read(file)
	if err != nil {
		fail(err)
	}
	verdict := check(histories, *timeout, *picture)
	if err := json.NewEncoder(os.Stdout).Encode(verdict); err != nil {
		fail(err)
	}
	if len(verdict.Illegal)+len(verdict.Undecided) > 0 {
		os.Exit(1)
	}
}

func check(histories map[string]*History, timeout time.Duration, picture string) Verdict {
	verdict := Verdict{Keys: len(histories), Illegal: []string{}, Undecided: []string{}}
	for key, history := range histories {
		verdict.Operations += len(history.Sure) + len(history.Unseen)
		result, info := decide(history, timeout)
		switch result {
		case porcupine.Ok:
			continue
		case porcupine.Illegal:
			verdict.Illegal = append(verdict.Illegal, key)
		default:
			verdict.Undecided = append(verdict.Undecided, key)
		}
		if picture != "" {
			page := filepath.Join(picture, fmt.Sprintf("%x.html", key))
			if err := porcupine.VisualizePath(model(), info, page); err != nil {
				fail(err)
			}
		}
	}
	sort.Strings(verdict.Illegal)
	sort.Strings(verdict.Undecided)
	return verdict
}

// decide tries without the writes that nobody saw first: if the others are in order, these may have come at the end.
// Otherwise one of them may explain why a condition did not hold, and all must be tried, which takes long where they are
// many.
func decide(history *History, timeout time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	result, info := porcupine.CheckOperationsVerbose(model(), history.Sure, timeout)
	if result == porcupine.Ok || len(history.Unseen) == 0 {
		return result, info
	}
	all := append(append([]porcupine.Operation{}, history.Sure...), history.Unseen...)
	return porcupine.CheckOperationsVerbose(model(), all, timeout)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "linearizability:", err)
	os.Exit(2)
}
