package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// history makes lines of "client call return key op value match outcome"; - stands for nothing.
func history(lines ...string) string {
	var text strings.Builder
	for _, line := range lines {
		var client, call, returned int64
		var key, op, value, match, outcome string
		if _, err := fmt.Sscan(line, &client, &call, &returned, &key, &op, &value, &match, &outcome); err != nil {
			panic(err)
		}
		fmt.Fprintf(&text, `{"client":%d,"call":%d,"return":%d,"key":%q,"op":%q,"value":%q,"match":%q,"outcome":%q}`+"\n",
			client, call, returned, key, op, strings.Trim(value, "-"), strings.Trim(match, "-"), outcome)
	}
	return text.String()
}

func TestHistories(t *testing.T) {
	cases := []struct {
		name  string
		legal bool
		lines []string
	}{
		{"a read of what was written", true, []string{"1 0 1 k put a - ok", "2 2 3 k get a - ok"}},
		{"a stale read", false, []string{"1 0 1 k put a - ok", "1 2 3 k put b - ok", "2 4 5 k get a - ok"}},
		{"a read beside the write", true, []string{"1 0 1 k put a - ok", "1 2 9 k put b - ok", "2 4 5 k get a - ok"}},
		{"back in time", false, []string{"1 0 1 k put a - ok", "1 2 9 k put b - ok", "2 3 4 k get b - ok", "2 5 6 k get a - ok"}},
		{"a lost object", false, []string{"1 0 1 k put a - ok", "2 2 3 k get - - missing"}},
		{"deleted", true, []string{"1 0 1 k put a - ok", "1 2 3 k delete - - ok", "2 4 5 k get - - missing"}},
		{"read after the delete", false, []string{"1 0 1 k put a - ok", "1 2 3 k delete - - ok", "2 4 5 k get a - ok"}},
		{"an unknown write that is seen late", true, []string{"1 0 1 k put a - unknown", "2 50 60 k get a - ok"}},
		{"an unknown write that is never seen", true, []string{"1 0 1 k put a - unknown", "2 50 60 k get - - missing"}},
		{"an unknown write that is seen and gone", false, []string{
			"1 0 1 k put a - unknown", "2 5 6 k get a - ok", "2 7 8 k get - - missing"}},
		{"two winners of one condition", false, []string{
			"1 0 9 k put_if_absent a - ok", "2 0 9 k put_if_absent b - ok"}},
		{"one winner", true, []string{"1 0 9 k put_if_absent a - ok", "2 0 9 k put_if_absent b - refused"}},
		{"refused by nothing", false, []string{"1 0 9 k put_if_absent a - refused"}},
		{"a conflict does nothing", true, []string{"1 0 9 k put_if_absent a - conflict", "1 10 11 k get - - missing"}},
		{"compare and swap", true, []string{
			"1 0 1 k put a - ok", "1 2 9 k put_if_match b a ok", "2 2 9 k put_if_match c a refused", "1 10 11 k get b - ok"}},
		{"a lost update", false, []string{
			"1 0 1 k put a - ok", "1 2 9 k put_if_match b a ok", "2 2 9 k put_if_match c a ok"}},
		{"a swap of nothing", true, []string{"1 0 1 k put_if_match b a missing"}},
		{"refused because of a write that nobody saw", true, []string{
			"1 0 1 k put a - unknown", "2 2 3 k put_if_absent b - refused", "3 4 5 k delete - - ok", "2 6 7 k get - - missing"}},
		{"an unknown delete", true, []string{"1 0 1 k put a - ok", "1 2 3 k delete - - unknown", "2 4 5 k get - - missing"}},
		{"an unknown write cannot be seen before it begins", false, []string{
			"2 0 1 k get a - ok", "1 5 6 k put a - unknown"}},
		{"keys are apart", true, []string{"1 0 1 k put a - ok", "2 2 3 other get - - missing"}},
		{"an unknown read says nothing", true, []string{"1 0 1 k put a - ok", "2 2 3 k get - - unknown"}},
	}
	for _, test := range cases {
		histories, err := read(strings.NewReader(history(test.lines...)))
		if err != nil {
			t.Fatal(err)
		}
		verdict := check(histories, time.Minute, "")
		if legal := len(verdict.Illegal)+len(verdict.Undecided) == 0; legal != test.legal {
			t.Errorf("%s: %+v", test.name, verdict)
		}
	}
}

// Hundreds of writes without an answer, as a gateway's death leaves them, do not keep the checker from a verdict.
func TestManyUnknownWrites(t *testing.T) {
	var lines []string
	at := 0
	for round := range 200 {
		lines = append(lines,
			fmt.Sprintf("1 %d %d k put lost%d - unknown", at, at+1, round),
			fmt.Sprintf("2 %d %d k put seen%d - ok", at+2, at+3, round),
			fmt.Sprintf("3 %d %d k get seen%d - ok", at+4, at+5, round))
		at += 10
	}
	for _, stale := range []bool{false, true} {
		if stale {
			lines = append(lines, fmt.Sprintf("3 %d %d k get seen5 - ok", at, at+1))
		}
		histories, err := read(strings.NewReader(history(lines...)))
		if err != nil {
			t.Fatal(err)
		}
		verdict := check(histories, 2*time.Second, "")
		// To show that no order of so many unseen writes explains a stale read takes too long: it is not passed, either.
		if isFine := len(verdict.Illegal)+len(verdict.Undecided) == 0; isFine == stale {
			t.Errorf("stale %v: %+v", stale, verdict)
		}
	}
}

func TestDamagedLine(t *testing.T) {
	if _, err := read(strings.NewReader("{\"client\":1}\n{")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a damaged line: %v", err)
	}
}
