"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from call_faults import failing_calls, inject
from harness.crew import NurseryClient, printed_by


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of failing calls, to be preloaded."""
    return failing_calls.build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def run(library: Path) -> Iterator[Callable[..., str]]:
    """Run a program with it, with these arguments; what it printed."""
    nursery = NurseryClient(LD_PRELOAD=str(library), **{inject.PRELOADED: "1"})
    yield partial(printed_by, of=nursery)
    nursery.stop()
