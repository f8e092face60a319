"""The parser of frames: every split of an answer, every truncation, every flipped bit."""

import json
import random
import struct
import zlib

import pytest
from striate.errors import ProtocolError
from striate.frames import END, FIRST, HEADER, LAST, Assembler, FrameParser


def frame(item, status=200, flags=FIRST | LAST, head=b"", body=b"", crc=None):
    start = HEADER.pack(b"STR1", item, status, flags, 0, len(head), len(body), 0)[:20]
    crc = zlib.crc32(start + head + body) if crc is None else crc
    return start + struct.pack(">I", crc) + head + body


def head(length, **more):
    return json.dumps({"key": "k", "size": length, "content_length": length, **more}).encode()


def end(count):
    return frame(count, flags=END)


def whole():
    """Returns an answer with three items: a small one, one in three frames around the others, and a missing one."""
    return (
        frame(1, flags=FIRST, head=head(9), body=b"abc") + frame(0, head=head(5), body=b"small")
        + frame(1, flags=0, body=b"def") + frame(2, 404, head=b'{"key": "x", "code": "NoSuchKey", "message": "gone"}')
        + frame(1, flags=LAST, body=b"ghi") + end(3)
    )


EXPECTED = [(0, 200, b"small"), (2, 404, b""), (1, 200, b"abcdefghi")]


def read(portions, count=3):
    parser, assembler = FrameParser(), Assembler(count)
    answers = []
    for portion in portions:
        for parsed in parser.feed(portion):
            answer = assembler.push(parsed)
            if answer is not None:
                answers.append((answer.item, answer.status, answer.data))
    parser.close()
    return answers


def test_an_answer_is_understood_however_it_is_cut():
    data = whole()
    assert read([data]) == EXPECTED
    for size in range(1, len(data)):
        assert read([data[start:start + size] for start in range(0, len(data), size)]) == EXPECTED
    generator = random.Random(5)
    for _ in range(200):
        cuts = sorted({0, len(data), *generator.choices(range(len(data)), k=generator.randrange(12))})
        assert read([data[start:stop] for start, stop in zip(cuts, cuts[1:])]) == EXPECTED


def test_an_answer_that_ends_early_is_not_whole():
    data = whole()
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            read([data[:length]])


def test_every_flipped_bit_is_seen():
    data = whole()
    for position in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            with pytest.raises(ProtocolError):
                read([bytes(broken)])


@pytest.mark.parametrize(("data", "why"), [
    (frame(3, head=head(0)), "item 3, which was not asked for"),
    (frame(0, head=head(0)) * 2, "item 0, which was not asked for or is complete"),
    (frame(0, flags=LAST, body=b"x"), "out of order"),
    (frame(0, flags=FIRST, head=head(2), body=b"x") * 2, "out of order"),
    (frame(0, head=head(2), body=b"x"), "1 bytes instead of 2"),
    (frame(0, head=head(2), body=b"xyz"), "3 bytes instead of 2"),
    (frame(0, head=b"not JSON"), "not JSON"),
    (frame(0, head=b"[1]"), "not a JSON object"),
    (frame(0, 404, FIRST, head=b"{}"), "goes on"),
    (frame(0, 404, head=b"{}", body=b"x"), "goes on"),
    (end(3), "after 0 of 3 items"),
    (whole() + b"\0", "bytes follow"),
    (whole() + end(3), "bytes follow"),
    (whole()[:-24] + end(2), "after 3 of 3 items"),
    (whole()[:-24] + frame(3, flags=END, body=b"x"), "end frame carries"),
    (whole()[:-24] + frame(3, flags=END | LAST), "end frame carries"),
    (frame(0, flags=8, head=head(0)), "not the beginning"),
    (HEADER.pack(b"STR1", 0, 200, 3, 0, 0, 1 << 31, 0), "2147483648 of body"),
    (HEADER.pack(b"STR1", 0, 200, 3, 0, 1 << 20, 0, 0), "1048576 bytes of head"),
    (HEADER.pack(b"STR2", 0, 200, 3, 0, 0, 0, 0), "not the beginning"),
    (whole()[:-1], "before its end frame"),
])
def test_what_the_protocol_does_not_allow_is_refused(data, why):
    with pytest.raises(ProtocolError, match=why):
        read([data])


def test_what_came_of_an_item_that_fails_half_way_is_dropped():
    data = (
        frame(0, flags=FIRST, head=head(6), body=b"abc")
        + frame(0, 500, LAST, head=b'{"key": "k", "code": "InternalError", "message": "broken"}') + end(1)
    )
    assert read([data], 1) == [(0, 500, b"")]


def test_bytes_of_an_item_are_joined_once():
    """Until the item is complete, the pieces of its body are views of the input."""
    parser = FrameParser()
    data = frame(0, flags=FIRST, head=head(2000), body=b"x" * 1000)
    (parsed,) = parser.feed(data)
    assert [piece.obj is data for piece in parsed.body] == [True]
