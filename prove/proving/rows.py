"""Rows of a cluster's metadata in etcd, read as far as proofs must know what the store itself has written.

Keys are those of crates/meta/src/keys.rs. A value is a byte, the schema that a reader needs, followed by a protocol buffer
(crates/meta/proto/records.proto).
"""

import base64
from collections import Counter
from dataclasses import dataclass

PAGE = 1_000
BASE = b"striate/r"
STRIPES, OBJECTS, BLOCKS, PARTS, GARBAGE, INTENTS, CHANGES = b"s/", b"o/", b"k/", b"t/", b"g/", b"i/", b"q/"
# States of wide stripes; other stripes have 0.
BUILDING, SEALED, COMPLETE, ABORTING = 1, 2, 3, 4
# Field numbers.
STRIPE_LOCATIONS, STRIPE_WIDE_STATE, OBJECT_EXTENT = 3, 11, 25
LOCATION_SITE, LOCATION_GENERATION, LOCATION_CONTENT = 1, 2, 4


@dataclass(frozen=True)
class Row:
    key: bytes
    value: bytes
    revision: int  # of the transaction that wrote it last


def text(value):
    return base64.b64encode(value).decode()


def end_of(prefix):
    return prefix[:-1] + bytes([prefix[-1] + 1])


def read(cluster, prefix):
    """Reads all rows whose keys begin with `prefix`, page by page, as of one revision."""
    first, end, moment, rows = BASE + prefix, end_of(BASE + prefix), {}, []
    while True:
        answer = cluster.ask_etcd({"key": text(first), "range_end": text(end), "limit": str(PAGE), **moment})
        moment = {"revision": answer["header"]["revision"]}
        for row in answer.get("kvs", []):
            key, value = (base64.b64decode(row.get(field, "")) for field in ("key", "value"))
            rows.append(Row(key[len(BASE):], value, int(row["mod_revision"])))
        if not answer.get("more"):
            return rows
        first = BASE + rows[-1].key + b"\0"


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """Yields the fields of a message: their numbers, and their values as numbers or bytes."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            length = {1: 8, 5: 4}[kind]
            value, at = int.from_bytes(data[at:at + length], "little"), at + length
        yield number, value


def revisions(cluster, *prefixes):
    """Returns the revision at which each row with one of these prefixes was last written."""
    return {row.key: row.revision for prefix in prefixes for row in read(cluster, prefix)}


def wide_states(cluster):
    """Counts the wide stripes in each state."""
    states = (dict(fields(row.value[1:])).get(STRIPE_WIDE_STATE, 0) for row in read(cluster, STRIPES))
    return Counter(state for state in states if state)


def newest_state(cluster):
    """Returns the state of the stripe on which work began last, or 0. It reads few rows, so that the state is still current."""
    in_work = read(cluster, CHANGES)
    if not in_work:
        return 0
    newest = max(in_work, key=lambda row: row.revision)
    found = cluster.ask_etcd({"key": text(BASE + STRIPES + newest.key[len(CHANGES):])}).get("kvs", [])
    return dict(fields(base64.b64decode(found[0]["value"])[1:])).get(STRIPE_WIDE_STATE, 0) if found else 0


def count_wide(cluster):
    """Counts the wide stripes in any state."""
    return sum(wide_states(cluster).values())


def count_packed(cluster, bucket):
    """Counts the packed objects of a bucket."""
    return sum(OBJECT_EXTENT in dict(fields(row.value[1:])) for row in read(cluster, OBJECTS + bucket.encode() + b"\0"))


def data_chunks(cluster, k):
    """Returns the place and file of each stripe's k data chunks: site, generation and version of the content.

    Wide stripes are skipped: their data chunks belong to other stripes.
    """
    found = {}
    for row in read(cluster, STRIPES):
        record = list(fields(row.value[1:]))
        if dict(record).get(STRIPE_WIDE_STATE, 0):
            continue
        locations = [dict(fields(value)) for number, value in record if number == STRIPE_LOCATIONS]
        for index, location in enumerate(locations[:k]):
            found[row.key, index] = tuple(location.get(field, 0) for field in (LOCATION_SITE, LOCATION_GENERATION, LOCATION_CONTENT))
    return found
