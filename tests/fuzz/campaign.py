"""Fuzz targets one after the other, each in a process of its own, and show what came of it.

`campaign.py SECONDS [TARGET ...]`, in the folder of a build that counts coverage: see `make fuzz`.
Status 1 if anything broke; the bytes that did it are in `findings`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from fuzz.all_targets import TARGETS
from fuzz.targets import folder_of

BYTES_MAX = 4096
INPUT_S_MAX = 10
MEMORY_MB_MAX = 1500
ALLOCATION_MB_MAX = 256
_PROGRESS = re.compile(rb"#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/")
_EXECUTIONS = re.compile(rb"number_of_executed_units:\s+(\d+)")


class Result(NamedTuple):
    """What one target's run came to."""

    target: str
    executions: int
    edges: int
    features: int
    inputs: int
    broke: bool


def run(target: str, seconds: int) -> Result:
    """Fuzz one target for so long, or until something breaks."""
    found = Path("found") / target
    found.mkdir(parents=True, exist_ok=True)
    corpus = Path("tests/fuzz/corpus") / target
    arguments = [
        str(found),
        *([str(corpus)] if corpus.is_dir() else []),
        f"-max_total_time={seconds}",
        f"-max_len={BYTES_MAX}",
        f"-timeout={INPUT_S_MAX}",
        f"-rss_limit_mb={MEMORY_MB_MAX}",
        f"-malloc_limit_mb={ALLOCATION_MB_MAX}",
        f"-artifact_prefix=findings/{target}-",
        "-print_final_stats=1",
    ]
    log_path = Path("findings") / f"{target}.log"
    with open(log_path, "wb") as log:
        fuzzer = subprocess.Popen(
            [sys.executable, "tests/fuzz/run.py", target, "./coverage.so", *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        status = fuzzer.wait()
    shutil.rmtree(folder_of(fuzzer.pid), ignore_errors=True)
    text = log_path.read_bytes()
    progress = _PROGRESS.findall(text)
    executed = _EXECUTIONS.findall(text)
    edges, features, inputs = map(int, progress[-1]) if progress else (0, 0, 0)
    if not executed:
        executed = re.findall(rb"#(\d+)\s", text)[-1:]
    return Result(
        target, int(executed[-1]) if executed else 0, edges, features, inputs, status != 0
    )


def main() -> int:
    seconds, names = int(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    unknown = set(names) - set(TARGETS)
    if unknown:
        sys.exit(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    print(f"{'target':26}{'executions':>12}{'edges':>8}{'features':>10}{'inputs':>8}", flush=True)
    broke = False
    for name in names:
        result = run(name, max(1, seconds // len(names)))
        broke |= result.broke
        end = f"  BROKE: findings/{name}.log" if result.broke else ""
        print(
            f"{name:26}{result.executions:12,}{result.edges:8,}{result.features:10,}"
            f"{result.inputs:8,}{end}",
            flush=True,
        )
    return int(broke)


if __name__ == "__main__":
    sys.exit(main())
