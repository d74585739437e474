"""The store of the staging tests: with a topic, and no thread that completes jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from staged_jobs import PARTITIONS, TOPIC, quick_directory

import eoslog
from eoslog.store.peer_monitor import PeerMonitor


@pytest.fixture(autouse=True)
def no_retries() -> Iterator[None]:
    """The background thread does not complete staged jobs that a test leaves undone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PeerMonitor, "look", lambda self: None)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Of a closed store, in memory."""
    with quick_directory(tmp_path) as directory:
        with eoslog.open(directory / "store", create=True) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)
        yield directory / "store"


@pytest.fixture
def store(path: Path) -> Iterator[eoslog.Store]:
    with eoslog.open(path) as store:
        yield store
