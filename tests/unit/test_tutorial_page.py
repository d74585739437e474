"""`docs/tutorial.md`, followed from top to bottom, prints what it says.

Its installs are left out, but for the wheel that EOSLOG_WHEEL names: tools/test_other_python.sh
does so, with an environment that has nothing of an index.
"""

from __future__ import annotations

import doctest
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.fork import die, dies_in_child
from stores import values_of

import eoslog
from eoslog.producer.producer import Producer

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SPARK = "## 5."


def follow(text: str, folder: Path, *, wheels: Path | None = None) -> int:
    """Save each script under the name in its first line, run each command; how many there were.

    With a folder of wheels the page's own environment is made, of these wheels alone.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_QUIET": "2"}
    checker, count = doctest.OutputChecker(), 0
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            name, _, _ = block.removeprefix("# ").partition("\n")
            (folder / name).write_text(block, encoding="utf-8")
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            if wheels is None and ("pip install" in command or "venv" in command):
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env={**os.environ, **pip, "PATH": path},
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
            if "venv env" in command:  # The next commands are of the same shell.
                path = os.pathsep.join([str(folder / "env" / "bin"), path])
            count += 1
    return count


def test_the_tutorial_up_to_spark(tmp_path):
    text, found, _ = PAGE.read_text(encoding="utf-8").partition(SPARK)
    assert found
    assert follow(text, tmp_path) == 12


@pytest.mark.parametrize("ahead", [0, 1])
def test_its_first_script_is_killed_half_way_and_begun_again(tmp_path, monkeypatch, ahead):
    """One partition is ahead of the other then: each has a position of its own."""
    blocks = [block for _, block in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    (script,) = [block for block in blocks if block.startswith("# orders.py")]
    monkeypatch.chdir(tmp_path)

    def work() -> None:
        sends = itertools.count()
        send = Producer.send

        def sent(self, topic, value, *, partition):
            if next(sends) == 5_000:
                die()
            if partition == ahead:
                self.append(topic, partition, [value])
            else:
                send(self, topic, value, partition=partition)

        Producer.send = sent
        exec(script, {})

    assert dies_in_child(work)
    for _ in range(2):
        exec(script, {})
    with eoslog.open("shop", read_only=True) as store:
        found = values_of(store, "orders", 0) + values_of(store, "orders", 1)
    assert sorted(found) == sorted(b"order %d" % number for number in range(10_000))


@pytest.mark.skipif("EOSLOG_WHEEL" not in os.environ, reason="no EOSLOG_WHEEL")
def test_the_tutorial_with_its_installs(tmp_path):
    wheels, wheel = tmp_path / "wheels", Path(os.environ["EOSLOG_WHEEL"])
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, f"{wheel}[cli]"]
    subprocess.run(pip, check=True)
    assert wheel.name in {path.name for path in wheels.iterdir()}
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(SPARK)
    assert follow(text, tmp_path, wheels=wheels) == 14


@pytest.mark.long
def test_the_whole_tutorial(tmp_path):
    pytest.importorskip("pyspark")
    assert follow(PAGE.read_text(encoding="utf-8"), tmp_path) == 14
