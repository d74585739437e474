"""A store with the topic of `rows_topic`, for tests that stay within one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.rows_topic import TOPIC
from crash.transaction_trace import QUIET

import eoslog


@pytest.fixture
def rows_store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with eoslog.open(tmp_path / "store", create=True, durability="process", config=QUIET) as opened:
        opened.create_topic(TOPIC)
        yield opened
