"""Shared code of the proving programs: servers, a small S3 client, load, claims.

It uses only Python's standard library, so that a fresh machine can run it.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"
RESULTS = ROOT / "bench-results"
