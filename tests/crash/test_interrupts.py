"""Exceptions of a signal's handler, as of Ctrl-C, at any step: nothing stays locked behind them."""

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("interrupts_child.py")


@pytest.mark.parametrize("call", ["send", "poll", "snapshot", "transaction"])
def test_a_store_goes_on_and_closes_after_many_interrupts(tmp_path, call):
    done = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path / "store"), call, "300"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "closed"
    assert int(done.stdout.split()[1]) >= 300
