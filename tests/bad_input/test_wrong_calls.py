"""Wrong arguments to every call there is: a named error, never the end of the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FEWEST = {
    "log": 4000,
    "constructor": 800,
    "batches": 2000,
    "unmade": 500,
    "strangers": 3000,
    "closed": 50,
}


def run_child(script: str, root: Path, *arguments: str, seconds: int = 120) -> dict:
    """What the child printed; a signal that ended it is a failure that names the last call."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), str(root), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=root,  # A wrong path makes its files there.
        env=environment,
        check=False,
    )
    last_call = root / "last-call"
    where = last_call.read_text() if last_call.exists() else "the start"
    assert done.returncode == 0, f"exit {done.returncode} at {where}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("what", list(FEWEST))
def test_bindings(tmp_path, what):
    found = run_child("wrong_calls.py", tmp_path, what)
    assert found["complaints"] == []
    assert found["count"] >= FEWEST[what], "fewer calls were made than there are"


def test_public_api(tmp_path):
    found = run_child("wrong_store_calls.py", tmp_path)
    assert found["complaints"] == []
    assert found["count"] >= 4000, "fewer calls were made than there are"
