"""Bodies of objects whose pages are all different, made faster than random bytes."""

PAGE_BYTES = 4_096


def numbered(piece, length):
    """Returns `length` bytes: the piece again and again, with each page of 4 KiB beginning with its number.

    A body with pages that are swapped, or that belong elsewhere in it, is another body.
    """
    body = bytearray(piece) * -(-length // len(piece))
    for number, start in enumerate(range(0, length, PAGE_BYTES)):
        body[start:start + 8] = number.to_bytes(8, "big")
    del body[length:]
    return bytes(body)
