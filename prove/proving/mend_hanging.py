"""A disk that hangs, as operators meet it: what they ask answers and names it; SIGTERM ends the server; nothing is lost."""

import time
import urllib.error
import urllib.request

from .hanging import HangingDisk, why_unavailable
from .servers import Striate

BUCKET = "hanging"
OBJECTS = 24
# What is asked must answer within so many seconds, and SIGTERM must end the server.
ANSWERS_S, STOPS_S = 2.0, 45
# Time for which requests meet the disk, and the site must not count as recovered.
MEETING_S = 8


def prove_hanging(ledger, folder, full):
    missing = why_unavailable()
    if missing:
        ledger.skip(f"needs {missing}")
        return
    store = folder / "store"
    with HangingDisk(folder / "backing", store / "disk3", killable=True) as disk, Striate(store) as server:
        client = server.client()
        client.make_bucket(BUCKET)
        written = {f"key{number}": bytes([number]) * (300_000 + number) for number in range(OBJECTS)}
        for key, body in written.items():
            client.put(BUCKET, key, body)
        before = ask_everything(server)
        ledger.note("before: the slowest answer took %.2f s" % max(took for took, _ in before.values()))
        with disk.hanging():
            prove_health(ledger, server)
            prove_answers(ledger, server, str(store / "disk3"))
            prove_recovery(ledger, server)
            prove_stop(ledger, server)
        server.start()
        client.close()  # its connection went with the first process
        wrong = [key for key, body in written.items() if client.get(BUCKET, key) != body]
        ledger.add("what was acknowledged before a stop beside a hanging disk is there after it (E)", f"{len(wrong)} of {OBJECTS} wrong",
                   not wrong, "0")


def prove_health(ledger, server):
    began = time.monotonic()
    while time.monotonic() - began < 60:
        status, _ = fetch(server.endpoint + "/minio/health/cluster")
        if status == 503:
            break
    took = time.monotonic() - began
    ready, _ = fetch(server.console + "/health/ready")
    ledger.add("S3's health of the cluster says so within two seconds of a disk's hanging; writes go on, so it is ready (C 3, E)",
               f"503 after {took:.1f} s, ready {ready}", status == 503 and took <= ANSWERS_S and ready == 200, f"≤ {ANSWERS_S:.0f} s, 200")


def prove_answers(ledger, server, disk):
    answers = ask_everything(server)
    took = {name: seconds for name, (seconds, _) in answers.items()}
    slowest = max(took, key=took.get)
    ledger.add("while one disk of six hangs, every command, the status page and the metrics answer (E)",
               f"the slowest, {slowest}, in {took[slowest]:.2f} s; {sum(late > ANSWERS_S for late in took.values())} of {len(took)} late",
               took[slowest] <= ANSWERS_S, f"all within {ANSWERS_S:.0f} s")
    naming = ["status", "status --dir of the disk", "disk list", "page"]
    silent = [name for name in naming if not names(answers[name][1], disk)]
    ledger.add("and status, disk list and the page name the disk as hanging (E)", ", ".join(silent) or "all do", not silent, "all do")


def names(text, disk):
    """Whether a line or a JSON answer says of the disk that it hangs."""
    return any(disk in line and "hanging" in line for line in text.replace("},{", "}\n{").splitlines())


def ask_everything(server):
    """Asks everything that an operator asks. Returns seconds and text by the name of the question."""
    disks = [str(directory) for directory in server.directories]
    commands = {
        "status": ["status"], "status --json": ["status", "--json"], "status --dir of a good disk": ["status", "--dir", disks[0]],
        "status --dir of the disk": ["status", "--dir", disks[2]], "disk list": ["disk", "list"], "bucket list": ["bucket", "list"],
        "explain": ["explain", f"s3://{BUCKET}/key1"], "keys list": ["admin", "keys", "list"], "pack status": ["pack", "status"],
        "upgrade status": ["admin", "upgrade", "status"],
    }
    answers = {}
    for name, arguments in commands.items():
        answers[name] = timed(lambda arguments=arguments: server.run(*arguments, check=False, timeout_s=120))
    pages = {"metrics": "/metrics", "page": "/api/status", "ready": "/health/ready", "cluster": "/health/cluster"}
    for name, path in pages.items():
        answers[name] = timed(lambda path=path: fetch(server.console + path)[1])
    return answers


def timed(ask):
    began = time.monotonic()
    try:
        text = ask()
    except Exception as error:  # noqa: BLE001 - a question without an answer is a result
        text = f"no answer: {error}"
    return time.monotonic() - began, text


def fetch(url, timeout_s=120):
    """Returns status and text of an answer, whatever the status is."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def prove_recovery(ledger, server):
    """Reads, so that requests meet the disk, and counts how often its site is said to have recovered."""
    before = recoveries(server)
    client, ends = server.client(timeout_s=60), time.monotonic() + MEETING_S
    number = 0
    while time.monotonic() < ends:
        client.get(BUCKET, f"key{number % OBJECTS}")
        number += 1
    said = recoveries(server) - before
    ledger.add("a site whose disk hangs is not said to have recovered because its process answers (E)",
               f"{said} times in {number} reads", said == 0, "0")


def recoveries(server):
    return server.log_path.read_text(errors="replace").count("site has recovered")


def prove_stop(ledger, server):
    process, began = server.process, time.monotonic()
    process.terminate()
    ended = None
    while time.monotonic() - began < 2 * STOPS_S and ended is None:
        if process.poll() is not None:
            ended = time.monotonic() - began
        time.sleep(0.05)
    server.stop()
    ledger.add("SIGTERM ends a server beside a hanging disk, where the kernel lets it (E)",
               f"after {ended:.1f} s" if ended is not None else f"not within {2 * STOPS_S} s", ended is not None and ended <= STOPS_S,
               f"≤ {STOPS_S} s")
