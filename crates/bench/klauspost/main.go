// Times klauspost/reedsolomon on request, so that a driver can alternate it with other libraries.
//
// One request for each line of standard input, one answer for each on standard output:
//
//	arena BYTES                       allocate and fill the memory that stripes lie in      -> ok
//	case K R CHUNK_BYTES STRIPES LOST the stripes are used in rotation; LOST data chunks    -> ok
//	                                  are reconstructed each time, or, if 0, parities made
//	time CALLS                        go on in the rotation, that many stripes; processor   -> nanoseconds
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/klauspost/reedsolomon"
)

type stripes struct {
	encoder    reedsolomon.Encoder
	k, r, lost int
	chunk      int
	count      int
	next       int
	shards     [][]byte
	// Where the shards are handed to the library; Reconstruct changes the slice.
	call [][]byte
}

func main() {
	// One core, as the others have.
	runtime.GOMAXPROCS(1)
	input := bufio.NewScanner(os.Stdin)
	var arena []byte
	cases := map[string]*stripes{}
	var current *stripes
	for input.Scan() {
		line := input.Text()
		var size, calls, k, r, chunk, count, lost int
		if n, _ := fmt.Sscanf(line, "arena %d", &size); n == 1 {
			arena = newArena(size)
			fmt.Println("ok")
		} else if n, _ := fmt.Sscanf(line, "case %d %d %d %d %d", &k, &r, &chunk, &count, &lost); n == 5 {
			if cases[line] == nil {
				cases[line] = newStripes(arena, k, r, chunk, count, lost)
			}
			current = cases[line]
			fmt.Println("ok")
		} else if n, _ := fmt.Sscanf(line, "time %d", &calls); n == 1 {
			fmt.Println(current.time(calls).Nanoseconds())
		} else {
			log.Fatalf("not a request: %q", line)
		}
	}
}

func newArena(size int) []byte {
	arena, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		log.Fatal(err)
	}
	state := uint64(88172645463325252)
	for i := 0; i+8 <= len(arena); i += 8 {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		binary.LittleEndian.PutUint64(arena[i:], state)
	}
	return arena
}

func newStripes(arena []byte, k, r, chunk, count, lost int) *stripes {
	encoder, err := reedsolomon.New(k, r, reedsolomon.WithAutoGoroutines(chunk))
	if err != nil {
		log.Fatal(err)
	}
	s := &stripes{encoder: encoder, k: k, r: r, lost: lost, chunk: chunk, count: count}
	for i := 0; i < count*(k+r); i++ {
		s.shards = append(s.shards, arena[i*chunk:(i+1)*chunk:(i+1)*chunk])
	}
	s.call = make([][]byte, k+r)
	return s
}

func (s *stripes) time(calls int) time.Duration {
	start := processorTime()
	for ; calls > 0; calls-- {
		copy(s.call, s.shards[s.next*(s.k+s.r):])
		s.next = (s.next + 1) % s.count
		var err error
		if s.lost == 0 {
			err = s.encoder.Encode(s.call)
		} else {
			for i := 0; i < s.lost; i++ {
				// Its length says that it is missing, its capacity takes the result.
				s.call[i*s.k/s.lost] = s.call[i*s.k/s.lost][:0]
			}
			err = s.encoder.ReconstructData(s.call)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	return processorTime() - start
}

// The process's own time, which does not run on while something else has the processor.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
