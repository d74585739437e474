"""`docs/tutorial.md`, followed from top to bottom, prints what it says; without its installs."""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SPARK = "## 5."


def follow(text: str, folder: Path) -> int:
    """Save each script under the name in its first line, run each command; how many there were."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    checker, count = doctest.OutputChecker(), 0
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            name, _, _ = block.removeprefix("# ").partition("\n")
            (folder / name).write_text(block, encoding="utf-8")
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            if "pip install" in command or "venv" in command:
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env={**os.environ, "PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            # What an interactive shell prints then.
            killed = "Killed\n" if done.returncode == -signal.SIGKILL else ""
            printed = done.stdout + killed
            if not checker.check_output(expected, printed, COMPARED):
                pytest.fail(f"$ {command}\nexpected:\n{expected}\nprinted:\n{printed}")
            count += 1
    return count


def test_the_tutorial_up_to_spark(tmp_path):
    text, found, _ = PAGE.read_text(encoding="utf-8").partition(SPARK)
    assert found
    assert follow(text, tmp_path) == 10


@pytest.mark.long
def test_the_whole_tutorial(tmp_path):
    pytest.importorskip("pyspark")
    assert follow(PAGE.read_text(encoding="utf-8"), tmp_path) == 12
