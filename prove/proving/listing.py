"""LIST at depth: the last page costs as much as the first, and a delimiter seeks past each common prefix."""

import time

from . import load
from .claims import median, spread

BUCKET = "depth"
PREFIX = "list/"
PREFIXES = 10
ROUNDS = 41
FULL_KEYS = 1_000_000
FILL_SECONDS = 120  # of the short run
WRITERS = 64


def key(index, per_prefix):
    """Returns the load generator's key of object `index`."""
    return f"{PREFIX}{index // per_prefix:05}/{index:010}"


def fill(ledger, server, full):
    """Puts one-byte objects and returns their number."""
    count = FULL_KEYS
    if not full:
        trial = load.run(server, BUCKET, "put", 1, ops=5000, prefix="trial-", clients=WRITERS)
        affordable = int(trial["operations_per_s"] * FILL_SECONDS)
        count = min(FULL_KEYS, max(10_000, affordable // 10_000 * 10_000))
    figures = load.run(server, BUCKET, "put", 1, ops=count, prefix=PREFIX, keys_per_directory=count // PREFIXES,
                       clients=WRITERS)
    ledger.note(f"{count} keys put at {figures['operations_per_s']:.0f} per second")
    return count


def prove_listing(ledger, server, full):
    server.client().make_bucket(BUCKET)
    count = fill(ledger, server, full)
    per_prefix = count // PREFIXES
    client = server.client()
    pages = {
        "first": {"prefix": PREFIX},
        "last": {"prefix": PREFIX, "start_after": key(count - 1001, per_prefix)},
        "delimiter": {"prefix": PREFIX, "delimiter": "/"},
    }
    check_pages(pages, client, count, per_prefix)
    times = {name: [] for name in pages}
    for _ in range(ROUNDS):
        for name, query in pages.items():
            times[name].append(page_ms(client, query))
    named = f"{count:,} keys" + ("" if count == FULL_KEYS else f" (the short run's share of {FULL_KEYS:,})")
    state(ledger, f"last page of {named} over the first", times["last"], times["first"], 1.5)
    state(ledger, f"{PREFIXES} prefixes of {per_prefix:,} keys with a delimiter over a flat page", times["delimiter"],
          times["first"], 2.0)
    walk(ledger, client, count, per_prefix)


def check_pages(pages, client, count, per_prefix):
    first, _, _ = client.list_page(BUCKET, **pages["first"])
    last, _, token = client.list_page(BUCKET, **pages["last"])
    _, prefixes, _ = client.list_page(BUCKET, **pages["delimiter"])
    if first != [key(index, per_prefix) for index in range(1000)]:
        raise RuntimeError(f"the first page is wrong: {first[:3]} ... {first[-3:]}")
    if last != [key(index, per_prefix) for index in range(count - 1000, count)] or token:
        raise RuntimeError(f"the last page is wrong: {last[:3]} ... {last[-3:]}")
    if prefixes != [f"{PREFIX}{number:05}/" for number in range(PREFIXES)]:
        raise RuntimeError(f"the common prefixes are wrong: {prefixes}")


def page_ms(client, query):
    pairs = [("list-type", "2")] + [(name.replace("_", "-"), value) for name, value in query.items()]
    started = time.perf_counter()
    client.expect("GET", f"/{BUCKET}", query=pairs)
    return (time.perf_counter() - started) * 1000


def state(ledger, claim, subject, against, bar):
    ratios = [ours / theirs for ours, theirs in zip(subject, against)]
    ledger.add(f"LIST: {claim}", f"{median(ratios):.2f} × ({median(subject):.1f} against {median(against):.1f} ms)",
               median(ratios) <= bar, f"≤ {bar} ×", spread(sorted(ratios)[2:-2]))


def walk(ledger, client, count, per_prefix):
    """Reads all pages by continuation token: every key once, in order."""
    started = time.perf_counter()
    token, index = None, 0
    while True:
        more = {"continuation_token": token} if token else {}
        keys, _, token = client.list_page(BUCKET, prefix=PREFIX, **more)
        for name in keys:
            if name != key(index, per_prefix):
                ledger.add("LIST: all pages hold every key once, in order", f"key {index} is {name}", False, "all")
                return
            index += 1
        if not token:
            break
    took = time.perf_counter() - started
    ledger.add("LIST: all pages hold every key once, in order", f"{index:,} keys in {took:.1f} s", index == count, "all")
