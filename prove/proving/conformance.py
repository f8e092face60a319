"""Other projects' suites of S3 against a running server: s3-tests and versitygw's tests for clients.

Nothing of them is in this tree. `S3_TESTS` names a checkout of s3-tests whose Python (`S3_TESTS_PYTHON`, or else `venv/bin/python` beside
it) has its requirements; `VERSITYGW` names a built program.

A test of versitygw counts as passed if it prints PASS, or if all that differs is the text of a message: its client compares an error's
code first and then its text, so a line “expected error message to be …” says that the code was right. What such a test would have checked
afterwards is not seen.
"""

import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# Groups that need rights, versions, locks, websites or an IAM, and single tests that need them.
VERSITYGW_GROUPS = re.compile(
    r"^(IAM|S3IAM|Versioning|WebsiteHosting|WORMProtection|AccessControl|PublicBucket|NoAclMode"
    r"|(Put|Get|Delete)Bucket(Policy|Website|Versioning)|(Put|Get)Object(Retention|LegalHold|LockConfiguration))")
VERSITYGW_TESTS = re.compile(
    r"as_user|_iam_|access_denied|access_control|delete_markers|object_lock|bucket_lock|retention_lock|legal_hold"
    r"|translation_canned_public|success_(acp|canned_acl|grants)|non_default_acl|_VD_|(list_multiple|list_single|multiple)_object_versions")
WORDING = re.compile(r"expected (error|the error) message to be .*, instead got ", re.S)
COLOUR = re.compile(r"\x1b\[\d+m")

S3_TESTS_CONFIGURATION = """
[DEFAULT]
host = 127.0.0.1
port = {port}
is_secure = False
ssl_verify = False
[fixtures]
bucket prefix = conf-{{random}}-
iam name prefix = s3-tests-
iam path prefix = /s3-tests/
[s3 main]
display_name = striate
user_id = striate
email = main@example.com
api_name = us-east-1
access_key = {main.access_key}
secret_key = {main.secret_key}
[s3 alt]
display_name = striate
user_id = striate
email = alt@example.com
access_key = {alt.access_key}
secret_key = {alt.secret_key}
[s3 tenant]
display_name = striate
user_id = striate
email = tenant@example.com
tenant = striate
access_key = {alt.access_key}
secret_key = {alt.secret_key}
[iam]
display_name = striate
user_id = striate
email = iam@example.com
access_key = {alt.access_key}
secret_key = {alt.secret_key}
[iam root]
user_id = striate
email = root@example.com
access_key = {alt.access_key}
secret_key = {alt.secret_key}
[iam alt root]
user_id = striate
email = other@example.com
access_key = {alt.access_key}
secret_key = {alt.secret_key}
"""


def s3_tests(server, checkout, alt, only="not object_lock", jobs=()):
    """Runs test_s3.py and test_headers.py. Returns {test: None if it passed, else the reason}; skipped tests are left out."""
    checkout = Path(checkout)
    python = os.environ.get("S3_TESTS_PYTHON", checkout.parent / "venv" / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        configuration, report = Path(folder, "s3tests.conf"), Path(folder, "report.xml")
        configuration.write_text(S3_TESTS_CONFIGURATION.format(port=server.port, main=server.credentials, alt=alt))
        files = jobs or ["s3tests/functional/test_s3.py", "s3tests/functional/test_headers.py"]
        environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
        subprocess.run(
            ["nice", python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", f"--junitxml={report}", "-k", only, *files],
            cwd=checkout, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**environment, "S3TEST_CONF": str(configuration), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        return dict(verdicts(report))


def verdicts(report):
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
        wrong = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if wrong is not None:
            yield name, (wrong.get("message") or "").strip() or "failed"
        elif case.find("skipped") is None:
            yield name, None


def versitygw_tests(program):
    """Returns the names of the tests that need no rights, versions, locks or website."""
    done = run_versitygw(program, "-h")
    names = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("integration test")]
    return sorted(name for name in names if not VERSITYGW_GROUPS.search(name) and not VERSITYGW_TESTS.search(name))


def run_versitygw(program, *arguments, timeout_s=120):
    # Its client fails with a CA bundle in the environment.
    environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    return subprocess.run(["nice", program, "test", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=environment, timeout=timeout_s)


def versitygw(server, program, names):
    """Runs tests one by one, without buckets between them. Returns {test: None if it passed, else the reason}."""
    reasons = {}
    for name in names:
        try:
            done = run_versitygw(program, "-a", server.credentials.access_key, "-s", server.credentials.secret_key,
                                 "-e", server.endpoint, name)
            reasons[name] = reason_of(COLOUR.sub("", done.stdout + done.stderr), name)
        except subprocess.TimeoutExpired:
            reasons[name] = "no end within 120 s"
        # A connection of its own: an idle one is closed after a while.
        client = server.client()
        empty(client)
        client.close()
    return reasons


def reason_of(output, name):
    # A few print the name of another test.
    if re.search(r"^PASS \w+$", output, re.M) and not re.search(r"^FAIL ", output, re.M):
        return None
    wrong = re.search(r"FAIL \w+: (.*)", output, re.S)
    text = " ".join((wrong.group(1) if wrong else output).split())
    return f"wording only: {text}" if WORDING.search(text) else text or "printed nothing"


def differs(reason):
    """Returns whether something else than the text of a message differs."""
    return reason is not None and not reason.startswith("wording only")


def empty(client):
    """Removes all buckets with what is in them."""
    namespace = "{http://s3.amazonaws.com/doc/2006-03-01/}"

    def listed(path, query, element, *names):
        answer = client.send("GET", path, query)
        root = ElementTree.fromstring(answer.body)
        return [[item.findtext(f"{namespace}{name}") for name in names] for item in root.iter(f"{namespace}{element}")]

    for [bucket] in listed("/", [], "Bucket", "Name"):
        while keys := listed(f"/{bucket}", [("list-type", "2")], "Contents", "Key"):
            for [key] in keys:
                client.send("DELETE", f"/{bucket}/{key}")
        client.send("DELETE", f"/{bucket}")
