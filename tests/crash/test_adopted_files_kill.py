"""Staged files that become segments: the process dies before each call that changes a file."""

from __future__ import annotations

import pytest
from crash.numbered_calls import run
from staged_jobs import quick_directory

pytestmark = pytest.mark.crash

# Of some 700 calls; each death takes half a second.
SHORT_STEP = 97


def deaths(tmp_path, step: int, first: int, durability: str, mode: str) -> int:
    with quick_directory(tmp_path) as folder:
        arguments = str(folder), str(step), str(first), durability, mode
        printed = run("crash.adopt_child", tmp_path, *arguments)
    print(printed)
    return int(printed.split()[0])


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("mode", ["alone", "beside"])
@pytest.mark.parametrize("durability", ["commit", "process"])
def test_a_process_that_dies_while_it_adopts_files(tmp_path, durability, mode):
    """Whoever comes next finds each job in the log or not, once, and no file with two names."""
    first = 1 + ["commit", "process"].index(durability) * 7 + ["alone", "beside"].index(mode) * 14
    assert deaths(tmp_path, SHORT_STEP, first, durability, mode) > 3


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["alone", "beside"])
@pytest.mark.parametrize("durability", ["commit", "process"])
def test_a_process_that_dies_before_any_of_its_calls(tmp_path, durability, mode):
    assert deaths(tmp_path, 1, 1, durability, mode) > 300
