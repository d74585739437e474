"""Stores for the tests of the API: opened below tmp_path, closed at the end, killed on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stores import QUIET

import eoslog


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_store(store_path: Path) -> Iterator[Callable[..., eoslog.Store]]:
    """Open the store below `store_path`, made if need be; it is closed when the test ends."""
    opened: list[eoslog.Store] = []

    def open_it(durability: str = "process", **config: Any) -> eoslog.Store:
        settings = {**QUIET, **{name.replace("__", "."): one for name, one in config.items()}}
        opened.append(eoslog.open(store_path, create=True, durability=durability, config=settings))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., eoslog.Store]) -> eoslog.Store:
    return open_store()
