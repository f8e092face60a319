"""S3 in detail: documents, headers, errors, checksums, buckets and forms as clients need them; and other projects' suites of S3.

The suites run only where `S3_TESTS` names a checkout of s3-tests and `VERSITYGW` a program (see `conformance`).
"""

import os
import re
import subprocess
from pathlib import Path

from . import ROOT, TOOLS, conformance
from .servers import Striate, striate_binary
from .sigv4 import Credentials

# Claim, with the fault of 0.5.0 that it closes, and the tests of tests/clients/test_conformance.py that hold it.
CLIENT_TESTS = [
    ("CDATA, references and prefixed names in documents are read, never dropped (A F6)", ["sections_prefixes"]),
    ("control characters in keys: every answer is read by an XML parser, url-encoded listings are exact (A F10)", ["every_parser"]),
    ("error documents have Message, Resource, RequestId, HostId and the key (A F13)", ["error_documents"]),
    ("aws-chunked is never an object's Content-Encoding (A F7)", ["aws_chunked"]),
    ("lists of ETags in conditions of reads, writes and copies; ranges of any length (A F8)", ["conditions_list", "ranges_end"]),
    ("two lines of Cache-Control or of metadata are one value (A F13)", ["lines_of_one_header", "lines_of_metadata"]),
    ("Location after multipart uploads: virtual hosts, https (A F9)", ["a_completion_names"]),
    ("every answer to HeadBucket names the region, refusals too (A F11)", ["the_region_is_named"]),
    ("another region's LocationConstraint, unknown ownership, foreign lists, duplicate tags, .- and -. in names are refused (A F5, D)",
     ["what_a_new_bucket"]),
    ("one's own bucket may be created again, whoever made it; nothing changes (C 9, A “Differs”)", ["creating_ones_own"]),
    ("refused instead of stored: empty MD5, foreign lists, wrong redirects, 2 KiB of metadata on a copy, unknown attributes (D)",
     ["refused_headers", "lists_and_configurations"]),
    ("a completion's checksum is the object's; parts need the checksum that was promised (D, s3-tests)",
     ["checksum_of_a_completion", "parts_come_with"]),
    ("an object sent without a checksum has CRC64NVME (D)", ["object_without_a_checksum"]),
    ("signed bodies without a length, tag counts, plain ETags, empty delimiters and tokens, missing buckets (s3-tests, D)",
     ["without_its_length", "attributes_and_tag", "without_delimiter", "upload_in_a_missing"]),
    ("CORS rules and preflights that no browser could use are refused (D)", ["rules_and_preflights"]),
    ("what is no operation is refused as such, signed or not, the same for buckets that exist and that do not (D)", ["what_is_no_operation"]),
    ("codes of signatures, dates, tokens and body hashes; what was to be signed is shown (D)", ["codes_of_signatures", "wrong_hash_of_the_body"]),
    ("broken frames and trailers have S3's codes and store nothing (D)", ["broken_frames", "broken_signed_frames", "frames_without"]),
    ("tags have S3's characters, parts of a completion an ETag and one checksum that is theirs, checksums a value (D)",
     ["tags_are_letters", "says_of_its_parts", "empty_checksum"]),
    ("forms: ISO dates, no empty conditions, checksums free, 400 without a signature (s3-tests)", ["forms_are_read"]),
]
# At least so many tests pass: of 844 of s3-tests, and of 552 of versitygw's that need no rights, versions, locks or website.
S3_TESTS_BAR, VERSITYGW_BAR = 290, 400
REASONS = ROOT / "docs" / "src" / "s3-suites.md"


def prove_conformance(ledger, folder):
    prove_clients(ledger, folder)
    named = set(re.findall(r"`([\w:\[\]-]+)`", REASONS.read_text())) if REASONS.exists() else set()
    if checkout := os.environ.get("S3_TESTS"):
        # Its forms are signed with Version 2.
        with Striate(folder / "s3-tests", environment={"STRIATE_ALLOW_SIGNATURE_V2": "true"}) as server:
            verdicts = conformance.s3_tests(server, checkout, second_key(server, folder))
        failed = {name.partition("::")[2].partition("[")[0].removeprefix("test_") for name, reason in verdicts.items() if reason}
        claim_suite(ledger, "s3-tests, test_s3.py and test_headers.py without object_lock", verdicts, failed, S3_TESTS_BAR, named)
    else:
        ledger.add("s3-tests, test_s3.py and test_headers.py without object_lock", "not run: needs S3_TESTS, a checkout")
    if program := os.environ.get("VERSITYGW"):
        with Striate(folder / "versitygw") as server:
            reasons = conformance.versitygw(server, program, conformance.versitygw_tests(program))
        verdicts = {name: reason if conformance.differs(reason) else None for name, reason in reasons.items()}
        failed = {name for name, reason in verdicts.items() if reason}
        exact = sum(reason is None for reason in reasons.values())
        claim_suite(ledger, "versitygw's tests without rights, versions, locks and websites; the wording of messages is free", verdicts, failed,
                    VERSITYGW_BAR, named, f", {exact} of them word for word")
    else:
        ledger.add("versitygw's tests without rights, versions, locks and websites", "not run: needs VERSITYGW, a program")


def claim_suite(ledger, suite, verdicts, failed, bar, named, more=""):
    passed = sum(reason is None for reason in verdicts.values())
    ledger.add(suite, f"{passed} of {len(verdicts)} pass{more}", passed >= bar, f"≥ {bar}")
    unnamed = sorted(failed - named)
    ledger.add("   each that does not pass is named with its reason (docs/src/s3-suites.md)",
               f"{len(failed)} named" if not unnamed else f"{len(unnamed)} are not: {', '.join(unnamed[:8])}", not unnamed, "all")
    ledger.record(suite, {name: reason for name, reason in verdicts.items() if reason})


def second_key(server, folder):
    """Makes another access key. Returns it."""
    path = Path(folder, "second-key")
    server.run("admin", "keys", "create", "--secret-file", path)
    return Credentials(*re.findall(r"KEY=(\S+)", path.read_text()))


def prove_clients(ledger, folder):
    """Runs the client tests once and states each claim by those that hold it."""
    report = Path(folder, "report.xml")
    environment = {**os.environ, "STRIATE": str(striate_binary()), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("TEST_SERVER", None)
    subprocess.run(
        [TOOLS / "venv" / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", f"--junitxml={report}",
         ROOT / "tests" / "clients" / "test_conformance.py"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd=ROOT,
    )
    verdicts = dict(conformance.verdicts(report))
    for claim, words in CLIENT_TESTS:
        held = {name: reason for name, reason in verdicts.items() if any(word in name for word in words)}
        wrong = [f"{name}: {reason[:120]}" for name, reason in held.items() if reason]
        ledger.add(claim, f"{len(held)} cases" if not wrong else "; ".join(wrong), bool(held) and not wrong, "all hold")
