"""What `deploy/` says is held against the program's sources and against the program itself."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program():
    """STRIATE names the binary; otherwise the development build of this tree."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = Path(os.environ.get("STRIATE", target / "debug" / "striate"))
    assert path.exists(), f"{path} is not there; `make program` builds it"
    return path
