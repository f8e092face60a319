"""Names, signatures, logs and secrets: nothing is served that was not signed, no name leaves its place, and what was done is recorded."""

import base64
import hashlib
import hmac
import http.client
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from urllib.parse import urlencode

from . import ROOT, TOOLS, sigv4
from .servers import Striate, free_port

BUCKET = "names"
ESCAPES = "\x1b]0;owned\x07\x1b[2Jk"
ODD_KEYS = ["../esc1", "sub/../../../esc2", "..", "./dot", "sub/../inside"]


def prove_names(ledger, folder, full):
    audit = folder / "audit.jsonl"
    server = Striate(folder / "server", environment={"STRIATE_AUDIT_LOG": str(audit)})
    with server:
        server.client().make_bucket(BUCKET)
        prove_signatures(ledger, server)
        prove_names_of_files(ledger, server, folder)
        prove_terminal(ledger, server)
        prove_console(ledger, server)
        prove_commands(ledger, server, folder)
        prove_audit(ledger, server, audit)
        prove_hangup(ledger, server)
    prove_version_2(ledger, folder)
    prove_forwarding(ledger, folder)


# Signatures


def url_of_version_2(server, path, more=""):
    """Returns a target as boto3 presigns it by default: HMAC-SHA1 over method, path and expiry."""
    expires = int(time.time()) + 300
    text = f"GET\n\n\n{expires}\n{path}"
    signature = hmac.new(server.credentials.secret_key.encode(), text.encode(), hashlib.sha1).digest()
    fields = {"AWSAccessKeyId": server.credentials.access_key, "Expires": expires,
              "Signature": base64.b64encode(signature).decode()}
    return f"{path}?{urlencode(fields)}{more}"


def fetched(server, target, method="GET", headers=None, body=b""):
    with closing(server.client()) as client:
        return client.send_raw(method, target, {"host": client.host, **(headers or {})}, body)


def presigned_put(server, key, body_hash):
    """Returns the target of a presigned PUT whose query holds the body's hash, which the signature covers."""
    credentials, when = server.credentials, sigv4.now()
    fields = [("X-Amz-Algorithm", sigv4.ALGORITHM), ("X-Amz-Content-Sha256", body_hash),
              ("X-Amz-Credential", f"{credentials.access_key}/{credentials.scope(when)}"),
              ("X-Amz-Date", sigv4.stamp(when)), ("X-Amz-Expires", "300"), ("X-Amz-SignedHeaders", "host")]
    host = server.endpoint.partition("//")[2]
    request = sigv4.Request("PUT", f"/{BUCKET}/{key}", fields, {"host": host})
    text = sigv4.string_to_sign(credentials, when, request.canonical(["host"], body_hash))
    return f"{request.target()}&X-Amz-Signature={credentials.sign(text, when)}"


def form_without_bucket(server):
    """Returns a signed form, as (content type, body), whose policy has no condition on the bucket."""
    credentials, when = server.credentials, sigv4.now()
    fields = {"key": "by-form", "x-amz-algorithm": sigv4.ALGORITHM, "x-amz-date": sigv4.stamp(when),
              "x-amz-credential": f"{credentials.access_key}/{credentials.scope(when)}"}
    policy = {"expiration": "2099-01-01T00:00:00.000Z", "conditions": [["starts-with", f"${name}", ""] for name in fields]}
    fields["policy"] = base64.b64encode(json.dumps(policy).encode()).decode()
    fields["x-amz-signature"] = credentials.sign(fields["policy"], when)
    parts = [f'--xyz\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    file = '--xyz\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nbytes\r\n--xyz--\r\n'
    return "multipart/form-data; boundary=xyz", ("".join(parts) + file).encode()


def prove_signatures(ledger, server):
    client = server.client()
    client.put(BUCKET, "k", b"bytes")
    answer = fetched(server, url_of_version_2(server, f"/{BUCKET}/k"))
    ledger.add("a URL presigned with Signature Version 2 is refused unless --allow-signature-v2 (B F9)",
               f"{answer.status} {answer.code}", (answer.status, answer.code) == (400, "InvalidRequest"), "400 InvalidRequest")
    signed_hash = hashlib.sha256(b"signed").hexdigest()
    target = presigned_put(server, "hashed", signed_hash)
    other, right = (fetched(server, target, "PUT", body=body).status for body in (b"another", b"signed"))
    ledger.add("a body is compared with the hash in its presigned URL (B F10)", f"another body {other}, the signed one {right}",
               (other, right) == (400, 200), "400, 200")
    request = sigv4.Request("PUT", f"/{BUCKET}/profiled", [], {}, b"x")
    sigv4.sign_headers(request, server.credentials, client.host, payload_hash=sigv4.UNSIGNED)
    added = fetched(server, request.target(), "PUT", {**request.headers, "x-striate-profile": "none"}, b"x").status
    wide = client.send("PUT", f"/{BUCKET}/profiled", headers={"x-striate-profile": "replica(255)"}, body=b"x").status
    exists = client.send("HEAD", f"/{BUCKET}/profiled").status
    ledger.add("an unsigned x-striate-profile and one that six sites cannot hold are refused (B F10)",
               f"unsigned {added}, replica(255) {wide}, then HEAD {exists}", (added, wide, exists) == (403, 400, 404), "403, 400, 404")
    content_type, body = form_without_bucket(server)
    answer = fetched(server, f"/{BUCKET}", "POST", {"content-type": content_type}, body)
    ledger.add("a form whose policy names no bucket is refused (B F10)", f"{answer.status} {answer.code}",
               (answer.status, answer.code) == (403, "AccessDenied"), "403 AccessDenied")


def prove_version_2(ledger, folder):
    """With the option, Version 2 serves what it signs and nothing else."""
    with Striate(folder / "version-2", environment={"STRIATE_ALLOW_SIGNATURE_V2": "true"}) as server:
        client = server.client()
        client.make_bucket(BUCKET)
        client.put(BUCKET, "k", b"bytes")
        served = fetched(server, url_of_version_2(server, f"/{BUCKET}/k")).status
        unsigned = ["&response%2Dcontent%2Dtype=text%2Fhtml", "&t%61gging", "&batch=exists", "&attributes", "&partSize=1"]
        answers = [fetched(server, url_of_version_2(server, f"/{BUCKET}/k", more)).status for more in unsigned]
        ledger.add("with it, what Version 2 does not sign is not served under it (B F9)",
                   f"plain {served}, {len(unsigned)} with an unsigned parameter {sorted(set(answers))}",
                   served == 200 and all(status in (400, 403) for status in answers), "200; only 400 and 403")


# Names


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def prove_names_of_files(ledger, server, folder):
    client = server.client()
    client.make_bucket("odd")
    for key in [*ODD_KEYS, "good", "sub/good"]:
        client.put("odd", key, b"x")
    code = (
        "import sys, striate, fsspec\n"
        "fs = striate.fs.StriateFileSystem(sys.argv[1], access_key=sys.argv[2], secret_key=sys.argv[3])\n"
        "try:\n    fs.get('odd/', sys.argv[4], recursive=True)\n"
        "except striate.LeftOut as error:\n    print(fsspec.__version__, len(error.paths))\n"
    )
    python = TOOLS / "python" / "bin" / "python"
    target = folder / "by-python" / "a" / "b" / "target"
    done = subprocess.run(
        [python if python.exists() else sys.executable, "-c", "import striate.fs\n" + code, server.endpoint,
         server.credentials.access_key, server.credentials.secret_key, target],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python" / "src")},
    )
    version, _, left_out = done.stdout.strip().partition(" ")
    copied = files_below(folder / "by-python")
    ledger.add("Python: fs.get(recursive=True) writes nothing outside its target, copies the rest, and names what it left out (B F8)",
               f"fsspec {version or done.stderr[-80:]}: {copied}, {left_out} named",
               copied == ["a/b/target/good", "a/b/target/sub/good"] and left_out == str(len(ODD_KEYS)),
               f"two files below the target, {len(ODD_KEYS)} named")
    target = folder / "by-cp" / "a" / "b" / "target"
    output = server.run("cp", "--recursive", "s3://odd/", target, check=False)
    status, copied = server.last_status, files_below(folder / "by-cp")
    target.mkdir(parents=True, exist_ok=True)
    single = server.run("cp", "s3://odd/..", target, check=False)
    left = [name for name in files_below(folder / "by-cp") if name not in copied]
    ledger.add("cp downloads, of a tree and of s3://b/.., write nothing outside their target, partial files included (B F13)",
               f"status {status}: {copied}; of .. status {server.last_status}, {len(left)} files",
               status == 1 and server.last_status == 1 and not left and copied == ["a/b/target/good", "a/b/target/sub/good"]
               and "esc1" in output and "file's name" in single, "status 1 twice, nothing outside")


def prove_terminal(ledger, server):
    client = server.client()
    client.make_bucket("terminal")
    client.put("terminal", ESCAPES, b"x")
    outputs = {
        "ls": server.run("ls", "s3://terminal/", check=False),
        "explain": server.run("explain", f"s3://terminal/{ESCAPES}", check=False),
        "an error": server.run("cat", f"s3://terminal/{ESCAPES}gone", check=False),
        "a refusal": server.run("cp", f"s3://{ESCAPES}/k", "-", check=False),
    }
    raw = [name for name, text in outputs.items() if any(ord(letter) < 32 and letter not in "\n\t" for letter in text)]
    named = [name for name, text in outputs.items() if "owned" in text]
    ledger.add("ls, explain and errors print control characters escaped (B, §2)",
               f"raw in {raw or 'none'} of {len(outputs)} outputs, the name shown in {len(named)}", not raw and len(named) == len(outputs),
               "raw in none, shown in all")


# The console


def console(server, path, headers=None, body=None, version=11):
    connection = http.client.HTTPConnection("127.0.0.1", server.console_port, timeout=30)
    connection._http_vsn, connection._http_vsn_str = version, f"HTTP/1.{version % 10}"
    with closing(connection):
        connection.request("POST" if body is not None else "GET", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def prove_console(ledger, server):
    made = server.run("admin", "keys", "create", "--secret-file", server.base / "user.key", check=False)
    lines = (server.base / "user.key").read_text()
    values = dict(part.split("=", 1) for part in lines.replace("export ", "").split() if "=" in part)
    access_key, secret = values.get("STRIATE_ACCESS_KEY", ""), values.get("STRIATE_SECRET_KEY", "")
    sign_in = json.dumps({"access_key": access_key, "secret": secret})
    status, answer = console(server, "/api/sign-in", body=sign_in)
    token = json.loads(answer)["token"] if status == 200 else made
    authorization = {"Authorization": f"Bearer {token}"}
    before = console(server, "/api/status", authorization)[0]
    server.run("admin", "keys", "revoke", access_key)
    after = console(server, "/api/status", authorization)[0]
    ledger.add("a session on the console ends with its access key (B F11)", f"status before {before}, after the key was revoked {after}",
               (before, after) == (200, 401), "200, 401")
    wrong = json.dumps({"access_key": "guesser", "secret": "wrong-secret"})
    answers = []
    guessing = [threading.Thread(target=lambda: answers.append(console(server, "/api/sign-in", body=wrong)[0])) for _ in range(60)]
    started = time.monotonic()
    for thread in guessing:
        thread.start()
    for thread in guessing:
        thread.join()
    looked_at = [console(server, "/api/sign-in", body=wrong)[0] for _ in range(5)].count(403)
    ledger.add("wrong sign-ins from one address are limited (B F11)",
               f"of 60 at once {answers.count(403)} were looked at, of 5 more {looked_at}, in {time.monotonic() - started:.1f} s",
               looked_at == 0 and answers.count(403) <= 60, "none of the later ones")
    proxied = console(server, "/api/status", {"Host": f"127.0.0.1:{server.console_port}", "Connection": "close"}, version=10)[0]
    basic = console(server, "/api/status", {"Authorization": "Basic YTpi"})[0]
    local = console(server, "/api/status")[0]
    ledger.add("what nginx passes on by default, and a password for a proxy, are not taken for a program on this machine (B F11)",
               f"HTTP/1.0 {proxied}, Basic {basic}, a local program {local}", (proxied, basic, local) == (401, 401, 200), "401, 401, 200")


# Logs


def prove_audit(ledger, server, path):
    client = server.client()
    for key in ("one", "two"):
        client.put(BUCKET, key, b"x")
    document = b"<Delete><Object><Key>one</Key></Object><Object><Key>two</Key></Object></Delete>"
    digest = base64.b64encode(hashlib.md5(document).digest()).decode()
    client.expect("POST", f"/{BUCKET}", query=[("delete", "")], headers={"content-md5": digest}, body=document)
    client.expect("PUT", f"/{BUCKET}/copied", headers={"x-amz-copy-source": f"/{BUCKET}/k"})
    client.expect("POST", f"/{BUCKET}", query=[("batch", "exists")], body=json.dumps({"keys": ["k", "gone"]}).encode())
    forged = sigv4.Request("GET", f"/{BUCKET}/k", [], {}, b"")
    sigv4.sign_headers(forged, sigv4.Credentials("CLAIMED-KEY", "not-its-secret"), client.host, payload_hash=sigv4.UNSIGNED)
    fetched(server, forged.target(), "GET", forged.headers)
    server.run("bucket", "create", "by-operator")
    deadline = time.monotonic() + 20
    wanted = {
        "keys of DeleteObjects": lambda line: line["operation"] == "DeleteObjects" and line.get("keys") == ["one", "two"],
        "copy source": lambda line: line.get("copy_source") == f"{BUCKET}/k",
        "keys of a batch": lambda line: line.get("keys") == ["k", "gone"],
        "claimed key": lambda line: line.get("claimed_key") == "CLAIMED-KEY",
        "bucket made": lambda line: line.get("command") == "POST /v1/buckets" and line.get("subject") == "by-operator",
        "key revoked": lambda line: line.get("command", "").endswith("/revoke"),
        "sign-in": lambda line: line["operation"] == "SignIn" and line["status"] == 200,
        "wrong sign-in": lambda line: line["operation"] == "SignIn" and line.get("claimed_key") == "guesser",
    }
    found = set()
    while len(found) < len(wanted) and time.monotonic() < deadline:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found = {name for name, fits in wanted.items() if any("operation" in line and fits(line) for line in lines)}
        time.sleep(0.1)
    missing = sorted(set(wanted) - found)
    ledger.add("the audit log names deleted keys, batches, copy sources, claimed keys, admin commands and sign-ins (B, §2)",
               f"{len(found)} of {len(wanted)}" + (f", not {missing}" if missing else ""), not missing, "all")


# Commands


def prove_commands(ledger, server, folder):
    tree = folder / "tree"
    tree.mkdir()
    for number in range(200):
        (tree / f"{number}.txt").write_text("x")
    output = server.run("cp", "--recursive", tree, "s3://no-such-bucket/", check=False)
    ledger.add("cp -r of 200 files to a missing bucket says so once (C 17)",
               f"{len(output.strip().splitlines())} lines, status {server.last_status}",
               len(output.strip().splitlines()) == 1 and server.last_status == 1, "one line, status 1")
    large = folder / "large"
    large.write_bytes(os.urandom(96 << 20))
    copying = subprocess.Popen(
        [server.program, "cp", "--quiet", "--parallel", "1", large, f"s3://{BUCKET}/large"], stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env={**os.environ, **server.environment, "STRIATE_ENDPOINT": server.endpoint},
    )
    uploads = lambda: b"<Upload>" in server.client().send("GET", f"/{BUCKET}", query=[("uploads", "")]).body  # noqa: E731
    deadline = time.monotonic() + 30
    while not uploads() and copying.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    server.kill()
    time.sleep(8)
    server.start()
    status = copying.wait(120)
    stored = server.client().get(BUCKET, "large") if status == 0 else b""
    ledger.add("a running cp outlives a server that is away for 8 s (C 13)",
               f"status {status}, {'the same bytes' if stored == large.read_bytes() else copying.stderr.read()[-100:]}",
               status == 0 and stored == large.read_bytes(), "status 0, the same bytes")
    watching = subprocess.Popen(
        [server.program, "status", "--watch"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        env={**os.environ, **server.environment},
    )
    with watching:
        piped = watching.stdout.read1(65_536)
        watching.send_signal(signal.SIGINT)
    drawn = watched_in_terminal(server, rows=12, columns=40)
    lines = drawn.split(b"\x1b[J")[0].split(b"\r\n")
    ledger.add("status --watch writes no escapes into a pipe, and fits a terminal of 12 × 40 (C 16)",
               f"{piped.count(bytes([27]))} escapes in a pipe; {len(lines)} lines drawn", b"\x1b" not in piped and piped and len(lines) <= 12,
               "0; at most 12")


def watched_in_terminal(server, rows, columns):
    """Returns what `status --watch` draws first on a terminal of this size."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen([server.program, "status", "--watch"], stdin=slave, stdout=slave, stderr=slave,
                               env={**os.environ, **server.environment})
    os.close(slave)
    drawn, deadline = b"", time.monotonic() + 20
    while b"\x1b[J" not in drawn and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            drawn += os.read(master, 65_536)
    process.send_signal(signal.SIGINT)
    process.wait()
    os.close(master)
    return drawn


def prove_hangup(ledger, server):
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    while "SIGHUP" not in server.log_path.read_text(errors="replace") and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = server.process.poll() is None and server.client().send("GET", "/").status == 200
    ledger.add("SIGHUP does not end the server (A, “Differs”)", "it serves" if alive else "it has ended", alive, "it serves")


# Other stores


class Origin(threading.Thread):
    """A store that answers nothing, and keeps the first line of each request."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lines = []

    def run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                head = connection.recv(65_536)
                self.lines.append(head.split(b"\r\n")[0].decode(errors="replace"))
                answer = b"<ListBucketResult><Name>theirs</Name></ListBucketResult>" if b"list-type" in head else b""
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nETag: \"e\"\r\nContent-Length: %d\r\n"
                                   b"Connection: close\r\n\r\n%s" % (len(answer), answer))


def prove_forwarding(ledger, folder):
    origin = Origin()
    origin.start()
    with Striate(folder / "front", directories=1, environment={"STRIATE_CACHE_MIB": "128"}) as server:
        server.run("bucket", "create", "--origin", "s3://theirs", "--origin-endpoint", origin.endpoint, "front")
        client, before = server.client(), len(origin.lines)
        statuses = [client.send(method, f"/front/{key}").status
                    for key in ("../../admin", "..", "a/../b", "a/./b") for method in ("GET", "PUT", "DELETE")]
        copied = client.send("PUT", "/front/k", headers={"x-amz-copy-source": "/front/../../admin"}).status
        passed = origin.lines[before:]
    origin.listener.close()
    ledger.add("keys that a proxy would normalise out of their bucket are refused, and the origin sees none of them (B F13)",
               f"{sorted(set(statuses + [copied]))}, {len(passed)} requests passed on", set(statuses + [copied]) == {501} and not passed,
               "501, none passed on")
