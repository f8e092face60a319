"""Ageing of two buckets on real processes, one of small, packed objects, one of large ones.

Their objects are sealed into wide stripes, read while a site is down, repaired, deleted in part and converted back to narrow stripes.
"""

import json
import subprocess
import time
from dataclasses import dataclass

from . import hosts, rows, tending
from .sealing_cluster import PATIENCE_S, SMALL, STATED, Beside, Kept, RackedCluster, wait_for_fewer, wait_for_garbage
from .sealing_objects import BUCKET, LARGE, MIB, OTHERS, LargeObjects, Objects, OtherObjects, Reading, Written

PARTITION = MIB
# Bytes on links, as a multiple of the chunks: 66 of a frame's 1,514 bytes are headers, every second frame is acknowledged by 66 more, and
# there are TLS records, requests and rows of metadata.
FRAMING = 1.10
# Maximum seconds for space to return after the first garbage is gone: a service that polls each minute releases it in rounds, each followed
# by the garbage's grace period.
RETURNS_S = 300
# Maximum seconds until the leftovers of a dead process are found and removed.
LEFTOVERS_S = 300


@dataclass(frozen=True)
class Aged:
    """Objects to seal: their number of narrow stripes, and the bytes of a chunk."""

    objects: Objects
    stripes: int
    chunk: int


def prove_ageing(ledger, folder, full, gib):
    if hosts.are_missing(ledger):
        return
    # Full: `gib` GiB in chunks of 1 MiB and 512 KiB, a tenth in small objects. Short: 260 MiB, half in small objects, 1 MiB and 256 KiB.
    block = (3 if full else 1) * MIB
    small, large = (Objects(1, 3_200 * gib), LargeObjects(2, 53 * gib, block)) if full else (Objects(1, 4_000), LargeObjects(2, 24, block))
    others = OtherObjects(3, 0)
    with RackedCluster(folder, STATED if full else SMALL) as cluster:
        cluster.prepare_bucket(BUCKET, "packed ", "--pack", "1MiB")
        cluster.prepare_bucket(LARGE, "", "--pack", "off", "--block-kib", block >> 10)
        cluster.run("bucket", "create", OTHERS, "--profile", cluster.shape.narrow, "--pack", "off", "--dir", cluster.gateway)
        for objects in (small, large):
            objects.put_all(cluster)
        add_records(ledger, cluster, full)
        packed = cluster.pack(BUCKET, "--now")["progress"]["packed"]
        ledger.note(f"{packed['objects']} objects in {packed['groups']} groups")
        aged = [Aged(small, packed["groups"], PARTITION), Aged(large, large.size() // block, block // cluster.shape.narrow_k)]
        # Garbage is removed after a minute at the earliest. In the short run both buckets wait for it together.
        for together in [[of] for of in aged] if full else [aged]:
            prove_sealing(ledger, cluster, together, 20 if full else 10)
        prove_losses(ledger, cluster, [small, large], others)
        ledger.note("a site was lost, and another emptied")
        prove_deletes(ledger, cluster, [small, large], others)
        ledger.note("a third was deleted")
        prove_back(ledger, cluster, small, large)
        ledger.note("narrow again")


def add_records(ledger, cluster, full):
    """Claims that chunks take little more than their bytes on disks. Later, disks also have what is deleted and not compacted yet.

    The short form has chunks of 256 KiB, for which gaps of up to two pages count more: there the ratio is only stated.
    """
    capacities = [site["capacity"] for site in cluster.status()["sites"]]
    on_disks, chunks = (sum(capacity[what] for capacity in capacities) for what in ("disk_bytes", "payload_bytes"))
    ratio = on_disks / max(1, chunks)
    ledger.add("bytes of chunks on disks, with headers, checksums and gaps, over their own, before anything is deleted", f"{ratio:.4f}",
               1 <= ratio <= 1.02 if full else None, "1 to 1.02" if full else "", f"{chunks / MIB:.0f} MiB of chunks")


def add_kept(ledger, before, after, objects):
    """Claims that sealing has not changed what it must leave alone."""
    written = [key for key in before.rows.keys() | after.rows.keys() if before.rows.get(key) != after.rows.get(key)]
    others = [chunk for chunk, file in before.chunks.items() if after.chunks.get(chunk) != file]
    moved, count = after.moved - before.moved, len(objects.names)
    ledger.add("sealing writes no row of an object, a block or a part, and no data chunk: rows of another revision in etcd, and data chunks of which "
               "stripes' rows name another site, generation or content", f"{len(written)} of {len(before.rows)}, {len(others)} of {len(before.chunks)}",
               not written and len(others) <= moved and len(before.rows) >= count and len(before.chunks) > 0,
               f"0 of at least {count}, and 0 beside chunks that were moved", f"{moved} were moved to level sites or for readers")


def prove_sealing(ledger, cluster, together, beside_s):
    """Seals buckets, one after the other, while they are read. Bytes are counted here: `prove_deletes` seals under writes."""
    wait_for_garbage(cluster)
    ledger.note("at rest")
    besides = [Beside(cluster, of.objects, beside_s) for of in together]
    before, kept = cluster.payload(), [Kept(cluster, of.objects.bucket) for of in together]
    sealed = [seal(ledger, cluster, of, beside) for of, beside in zip(together, besides)]
    wait_for_garbage(cluster)
    ledger.note("sealed, and at rest")
    for of, of_before in zip(together, kept):
        add_kept(ledger, of_before, Kept(cluster, of.objects.bucket), of.objects)
    add_bytes(ledger, cluster, list(zip(together, sealed)), before)
    for of in together:
        wrong = of.objects.wrong(cluster)
        ledger.add(f"every byte of {of.objects.bucket} after sealing", f"{len(wrong)} of {len(of.objects.names)} wrong", not wrong, "0 wrong")


def seal(ledger, cluster, of, beside):
    """Seals a bucket. Returns the command's report, with the number of wide stripes that there are more afterwards.

    The service may have begun just before the command, and have sealed some of them.
    """
    objects, had = of.objects, rows.count_wide(cluster)
    with Reading(objects, cluster.client(2)) as reading:
        began, crossed = time.monotonic(), cluster.crossing()
        cluster.let_age(objects.bucket)
        report = cluster.pack(objects.bucket, "--cold")["sealed"][0][1]
        crossed, seconds, reads = cluster.crossing() - crossed, time.monotonic() - began, reading.done
    ledger.record(f"ageing {objects.bucket}", report)
    sealed = rows.count_wide(cluster) - had
    ledger.add(f"{len(objects.names):,} objects, {objects.size() / MIB:,.0f} MiB, of {objects.bucket} age: wide stripes sealed, given up, and reads "
               "meanwhile that were wrong", f"{sealed}, {report['given_up']}, {reading}",
               sealed > 0 and report["given_up"] == 0 and reading.is_right(), "> 0, 0, 0 of some",
               f"{report['sealed']} by the command; {report['sealed_stripes']} of {of.stripes} stripes sealed, {report['half_sealed']} in part, "
               f"{report['waiting']} partitions wait")
    at_rest, of_reads = beside.a_second * seconds, beside.a_read * reads
    ratio = (crossed - at_rest - of_reads) / max(1, sealed * cluster.shape.sealing_chunks * of.chunk)
    ledger.add("bytes across racks for each wide stripe sealed, over the trees' (less what processes send at rest and for reads, as measured before)",
               f"{ratio:.3f}", 0.99 <= ratio <= FRAMING, f"0.99 to {FRAMING:.2f}",
               f"{crossed / MIB:.0f} MiB in all, {at_rest / MIB:.1f} of them at rest in {seconds:.0f} s and {of_reads / MIB:.1f} of {reads} reads")
    return {**report, "wide": sealed}


def add_bytes(ledger, cluster, sealed, before):
    """Compares the bytes of wide stripes' chunks with the code's.

    Bytes of other chunks are subtracted: other objects, waiting partitions, and remaining narrow parities.
    """
    shape, after = cluster.shape, cluster.payload()
    others = before - sum(of.stripes * (shape.narrow_k + shape.narrow_r) * of.chunk for of, _ in sealed)
    waiting = sum(report["waiting"] * of.chunk for of, report in sealed)
    narrow = sum((of.stripes - report["sealed_stripes"]) * shape.narrow_r * of.chunk for of, report in sealed)
    ratio = (after - others - waiting - narrow) / max(1, sum(report["wide"] * shape.n * of.chunk for of, report in sealed))
    ledger.add("bytes of chunks in wide stripes after sealing, over those of the code", f"{ratio:.3f}", abs(ratio - 1) < 0.02, "0.98 to 1.02",
               f"{before / MIB:.0f} MiB of chunks before, {after / MIB:.0f} after: {others / MIB:.1f} of others, {waiting / MIB:.1f} in partitions that wait, "
               f"{narrow / MIB:.1f} in parities of stripes that are not sealed or in part")


def prove_deletes(ledger, cluster, all_objects, others):
    """Deletes a third of the sealed objects, spread over all keys, and waits for their space.

    The rest is read meanwhile, and another bucket is written.
    """
    wait_for_garbage(cluster)
    before, lived = cluster.payload(), sum(objects.size() for objects in all_objects)
    replaced = sealed = 0
    for objects in all_objects:
        objects.delete(cluster, objects.third())
    with Reading(all_objects[0], cluster.client(2)) as reading, Written(others, cluster.client(1)) as writing:
        # Data rewritten by the first run may take the places of dead members in the second.
        for objects in all_objects * 2:
            report = cluster.pack(objects.bucket, "--now", "--cold")["sealed"][0][1]
            replaced, sealed = replaced + report["replaced"], sealed + report["sealed"]
    ledger.add("what is rewritten when a third is deleted is sealed again while another bucket is written: wide stripes sealed, and places in others "
               "taken", f"{sealed}, {replaced}", sealed + replaced > 0, "> 0 together")
    add_written(ledger, cluster, others, writing, "a third is deleted")
    wait_for_garbage(cluster)
    lives, began = sum(objects.size() for objects in all_objects), time.monotonic()
    while True:
        after = cluster.payload()
        ratio = (after / lives) / (before / lived)
        if ratio <= 1.1 or time.monotonic() - began > RETURNS_S:
            break
        time.sleep(5)
    ledger.add("one of each three keys is deleted, drawn at random: bytes of chunks for each living byte, over those before", f"{ratio:.3f}", ratio <= 1.1, "<= 1.10",
               f"{before / MIB:.0f} MiB before, {after / MIB:.0f} after, {replaced} dead members replaced or holes filled; "
               f"waited for {time.monotonic() - began:.0f} s after the garbage was gone")
    wrong = [name for objects in all_objects for name in objects.wrong(cluster)]
    ledger.add("every byte that is left, and reads meanwhile", f"{len(wrong)} wrong, {reading}", not wrong and reading.is_right(), "0 wrong, 0 of some")


def add_written(ledger, cluster, others, writing, when, may_fail=False):
    """Claims that objects written meanwhile read back right, then deletes them, so that only the ageing buckets have chunks."""
    wrong, count = others.wrong(cluster), len(others.names)
    ledger.add(f"{when}: objects of another bucket that were written meanwhile and are not what they should be, and writes that failed",
               f"{len(wrong)} of {count}, {writing}", count > 0 and not wrong and (may_fail or not writing.wrong),
               "0 of some" + ("" if may_fail else ", none failed"))
    others.delete(cluster, list(others.names))


def prove_back(ledger, cluster, small, large):
    """Converts wide stripes back to narrow ones while other objects are written.

    `pack undo` converts packed objects. Large objects, which it leaves alone, are copied onto themselves under the narrow profile.
    Afterwards there are no wide stripes.
    """
    for objects in (small, large):
        cluster.run("bucket", "set", objects.bucket, "--keep-cold-as-it-is", "--dir", cluster.gateway)
    packed = rows.count_packed(cluster, BUCKET)
    with Written(small, cluster.client(2)) as writing:
        done = cluster.run("pack", "undo", BUCKET, "--quiet", "--json", "--dir", cluster.gateway, timeout_s=3600)
        large.encode_anew(cluster, cluster.shape.narrow)
    report = json.loads(done)["report"]["progress"]
    left = rows.count_packed(cluster, BUCKET)
    ledger.add("pack undo, under writes: objects that are split again, that it could not, and that are packed afterwards",
               f"{report['objects']} of {packed}, {report['failed']}, {left}", report["objects"] == packed > 0 and report["failed"] == left == 0,
               "all, 0, 0", f"{report['overtaken']} were changed meanwhile")
    ledger.add("   writes meanwhile that failed", f"{writing}", writing.is_right(), "0 of some")
    before = rows.count_wide(cluster)
    left = wait_for_fewer(lambda: rows.count_wide(cluster), 10)
    ledger.add("wide stripes that are left when all objects are narrow again, by the rows of stripes", f"{left} of {before}", left == 0, "0")
    for objects in (small, large):
        wrong = objects.wrong(cluster)
        ledger.add(f"back to narrow: every byte of {objects.bucket}", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")
    add_verified(ledger, cluster, "after all this")


def add_verified(ledger, cluster, when):
    """Claims that `striate verify` finds nothing. It runs repeatedly: leftovers of dead processes are removed when their leases end."""
    reports = []

    def is_clean():
        done = subprocess.run([cluster.program, "verify", "--json", "--quiet", "--dir", str(cluster.gateway)], capture_output=True, text=True, timeout=3_600)
        report = json.loads(done.stdout)["report"]
        report["found"] = [report["progress"]["damaged"], *(report[name] for name in ("unknown", "orphans", "unexplained"))]
        reports.append(report)
        return done.returncode == 0 and not any(report["found"])

    clean = cluster.wait_until(is_clean, LEFTOVERS_S)
    if not reports:
        raise RuntimeError("verify did not answer")
    progress = reports[-1]["progress"]
    ledger.add(f"verify {when}: chunks that are damaged or missing, are on sites that do not answer, are named by nothing, are newer than the metadata",
               ", ".join(map(str, reports[-1]["found"])), clean is not None and progress["chunks"] > 0, "0, 0, 0, 0",
               f"{progress['chunks']} good chunks of {progress['stripes']} stripes; asked {len(reports)} times {reports[-1]['examples'][:1] or ''}".strip())


def prove_losses(ledger, cluster, all_objects, others):
    """Loses a site, which the store repairs automatically, and empties another, while another bucket is written."""
    with Written(others, cluster.client(2)) as writing:
        lose_and_drain(ledger, cluster, all_objects)
    # A client retries writes that fail while a site dies.
    add_written(ledger, cluster, others, writing, "a site is lost and another emptied", may_fail=True)


def lose_and_drain(ledger, cluster, all_objects):
    count = sum(len(objects.names) for objects in all_objects)

    def wrong_of_all():
        return [name for objects in all_objects for name in objects.wrong(cluster)]

    cluster.kill("site3")
    time.sleep(3)
    wrong = wrong_of_all()
    ledger.add("reads with a site away, its members computed in their wide stripes", f"{len(wrong)} of {count} wrong", not wrong, "0 wrong")
    crossed = cluster.crossing()
    whole = cluster.wait_until(lambda: tending.is_whole(cluster), PATIENCE_S)
    ledger.add("the store repairs what the site had: every chunk is verified", "whole" if whole is not None else "not whole", whole is not None, "whole",
               f"{(cluster.crossing() - crossed) / MIB:.0f} MiB across racks")
    # The site returns, and its old chunks are removed.
    cluster.restart("site3")
    drained = tending.number_of(cluster, "site4")
    had = tending.chunks(cluster, drained)
    cluster.run("admin", "site", "drain", drained, "--control", cluster.at("control"), "--identity", cluster.folder / "id" / "admin")
    took = cluster.wait_until(lambda: tending.chunks(cluster, drained) == 0, PATIENCE_S)
    ledger.add("a site that drains is emptied, its members with their copies", f"{tending.chunks(cluster, drained)} of {had} chunks left", took is not None and had > 0,
               "0 of some")
    wrong = wrong_of_all()
    ledger.add("every byte after both", f"{len(wrong)} of {count} wrong", not wrong, "0 wrong")
