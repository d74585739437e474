"""What the tests of this folder share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from call_faults import failing_calls


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The library of failing calls, to be preloaded."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler")
    return failing_calls.build_library(tmp_path)
