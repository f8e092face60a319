"""What the proving programs share: servers, a small S3 client, load, claims.

Only Python's standard library, so that a fresh machine can run them.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"
RESULTS = ROOT / "bench-results"
