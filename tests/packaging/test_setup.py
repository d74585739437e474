"""A build elsewhere than on Linux says so, before it compiles or imports anything."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = """
import runpy, sys
sys.platform = {system!r}
for name in ("fcntl", "numpy", "Cython", "setuptools"):
    sys.modules[name] = None  # As where they are missing.
sys.argv = ["setup.py", "bdist_wheel"]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_build_elsewhere_names_linux(system):
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE.format(system=system)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: eoslog runs on Linux only, and this is {system}")
    assert done.stderr.count("\n") == 1
