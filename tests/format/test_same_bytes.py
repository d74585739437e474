"""With the clock and the ids fixed, the same calls write the same `.log` files in every version."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from c_library import built_library

HERE = Path(__file__).parent
# Make it anew only for a change of the format that was meant.
GOLDEN = HERE / "golden" / "logs_of_fixed_calls.tar.xz"


def logs_of_fixed_calls(store: Path, folder: Path) -> dict[str, bytes]:
    """What the calls of `fixed_calls_child.py` wrote, by the name of the file."""
    clock = built_library(HERE / "fixed_clock.c", folder)
    preloaded = f"{os.environ.get('LD_PRELOAD', '')} {clock}".strip()
    child = [sys.executable, HERE / "fixed_calls_child.py", store]
    environment = os.environ | {"LD_PRELOAD": preloaded, "PYTHONHASHSEED": "0"}
    done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {str(path.relative_to(store)): path.read_bytes() for path in store.glob("*/*.log")}
    return {name: raw for name, raw in sorted(found.items()) if raw}


def first_difference(one: bytes, other: bytes) -> int:
    differing = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def test_the_same_calls_write_the_same_bytes(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN) as golden:
        wanted = {
            member.name: file.read() for member in golden if (file := golden.extractfile(member))
        }
    found = logs_of_fixed_calls(tmp_path / "store", tmp_path)
    assert found.keys() == wanted.keys()
    differ = {
        name: first_difference(raw, wanted[name])
        for name, raw in found.items()
        if raw != wanted[name]
    }
    assert differ == {}, "position of the first byte that differs, by file"
