"""C of the tests, built as they run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def built_library(source: Path, folder: Path, *flags: str) -> Path:
    """The shared library of a source file, in the folder; the test is skipped where there is no C
    compiler.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = folder / f"{source.stem}.so"
    common = ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    command = [compiler, *common, *flags, "-o", library, source, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library
