"""The power goes at random moments of all kinds of work: what was promised is there, no more.

A few states here; `make power-loss` has thousands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

TESTS = Path(__file__).parents[1]


def power_loss(folder: Path, *arguments: str) -> str:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    done = subprocess.run(
        [sys.executable, "-m", "power_loss", "--keep", folder, *arguments],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_states_of_all_kinds_of_work_mixed_are_as_promised(tmp_path):
    said = power_loss(tmp_path, "--states", "60", "--seed", "7", "--workload", "everything")
    assert "0 broken promises" in said


def test_a_state_can_be_had_again(tmp_path):
    said = power_loss(tmp_path, "--repeat", "appends:commit:700000:1")
    assert "appends:commit:700000:1: as promised" in said


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_thousands_of_states_are_as_promised(tmp_path):
    seed = os.environ.get("EOSLOG_SEED", "100")
    assert "0 broken promises" in power_loss(tmp_path, "--states", "3000", "--seed", seed)
