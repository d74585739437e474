"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from harness.crew import NurseryClient
from power_loss import disk_trace


@pytest.fixture(scope="session")
def events_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., object]]:
    """`disk_trace.events_of`, of processes that have the library."""
    library = disk_trace.build_library(tmp_path_factory.mktemp("library"))
    nursery = NurseryClient(LD_PRELOAD=str(library))
    yield partial(disk_trace.events_of, nursery)
    nursery.stop()
