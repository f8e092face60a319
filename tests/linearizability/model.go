// What S3 promises of one key, as a sequential object for porcupine: a register that holds a value or nothing.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/anishathalye/porcupine"
)

// absent is the state of a key without an object. Values are ETags, which are never empty.
const absent = ""

// Call is what a client asked, and Answer what it was told.
type Call struct {
	Op    string // get, put, put_if_absent, put_if_match, delete
	Value string // what a put writes
	Match string // what a put_if_match expects
}

// Answer is the outcome: ok, refused (a condition did not hold), missing (no object), conflict (S3's 409: nothing was
// done), or unknown (no answer, or one that says nothing of the outcome).
type Answer struct {
	Outcome string
	Value   string // what a get read
}

// Record is one line of a history. Times are nanoseconds of one monotonic clock.
type Record struct {
	Client  int    `json:"client"`
	Key     string `json:"key"`
	Op      string `json:"op"`
	Value   string `json:"value"`
	Match   string `json:"match"`
	Outcome string `json:"outcome"`
	Call    int64  `json:"call"`
	Return  int64  `json:"return"`
}

// step says whether an answer is right in a state, and which state follows.
func step(state string, call Call, answer Answer) (bool, string) {
	unknown := answer.Outcome == "unknown"
	switch call.Op {
	case "get":
		if answer.Outcome == "missing" {
			return state == absent, state
		}
		return answer.Value == state && state != absent, state
	case "put":
		return true, call.Value
	case "delete":
		return true, absent
	case "put_if_absent", "put_if_match":
		holds := state == absent
		if call.Op == "put_if_match" {
			holds = state != absent && state == call.Match
		}
		switch {
		case answer.Outcome == "conflict":
			return true, state
		case holds:
			return answer.Outcome == "ok" || unknown, call.Value
		default:
			return answer.Outcome == "refused" || answer.Outcome == "missing" || unknown, state
		}
	}
	return false, state
}

func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return absent },
		Step: func(state, input, output any) (bool, any) {
			return step(state.(string), input.(Call), output.(Answer))
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%q", state) },
	}
}

// History is what was done to one key.
type History struct {
	// Sure operations have an answer, or were seen to have taken effect.
	Sure []porcupine.Operation
	// Unseen writes have no answer, and nobody read what they wrote. They may have taken effect at any time since, or
	// never.
	Unseen []porcupine.Operation
}

// read splits a history into those of its keys. What was read without an answer says nothing and is left out. A write
// without one has taken effect before the first answer that knows its value, which is the end of it; one that nobody saw
// may take effect at any later time, or never, which nobody can tell from taking effect at the very end.
func read(from io.Reader) (map[string]*History, error) {
	records := make(map[string][]Record)
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		var record Record
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if record.Op != "get" || record.Outcome != "unknown" {
			records[record.Key] = append(records[record.Key], record)
		}
	}
	histories := make(map[string]*History)
	for key, of := range records {
		histories[key] = historyOf(of)
	}
	return histories, lines.Err()
}

func historyOf(records []Record) *History {
	seen := firstSeen(records)
	history := &History{}
	for _, record := range records {
		operation := record.operation()
		if record.Outcome != "unknown" {
			history.Sure = append(history.Sure, operation)
			continue
		}
		if at, is := seen[record.Value]; is && record.Op != "delete" {
			operation.Return = at
			history.Sure = append(history.Sure, operation)
			continue
		}
		operation.Return = math.MaxInt64
		history.Unseen = append(history.Unseen, operation)
	}
	return history
}

// firstSeen gives for each value the end of the first operation whose answer shows that it had been written.
func firstSeen(records []Record) map[string]int64 {
	seen := make(map[string]int64)
	for _, record := range records {
		value := ""
		switch {
		case record.Outcome != "ok":
		case record.Op == "get":
			value = record.Value
		case record.Op == "put_if_match":
			value = record.Match
		}
		if at, is := seen[value]; value != "" && (!is || record.Return < at) {
			seen[value] = record.Return
		}
	}
	return seen
}

func (record Record) operation() porcupine.Operation {
	call, answer := Call{record.Op, record.Value, record.Match}, Answer{Outcome: record.Outcome}
	if record.Op == "get" {
		call.Value, answer.Value = "", record.Value
	}
	return porcupine.Operation{
		ClientId: record.Client, Input: call, Call: record.Call, Output: answer, Return: record.Return,
	}
}
