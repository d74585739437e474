"""A staged job whose process runs out of memory, or of address space, after its decision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    quick_directory,
    stage_job,
    visible_numbers,
)

import eoslog
from eoslog.errors import StagedJobIncompleteError
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.staging.staged_application import ApplicationRecord
from eoslog.storage.partition import Partition

JOB = range(200)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with (
        quick_directory(tmp_path) as directory,
        eoslog.open(directory / "store", create=True) as opened,
    ):
        opened.create_topic(TOPIC, partitions=PARTITIONS)
        yield opened


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Partition, "adopt"), (Partition, "make_durable"), (GroupOffsets, "ensure_group")],
)
def test_want_of_memory_after_the_decision_loses_nothing(store, monkeypatch, owner, name):
    """A limit on the address space leaves no room to map a segment, say."""
    messages = stage_job(store.path, "run-a", JOB)
    original, refused = getattr(owner, name), []
    write, decided = ApplicationRecord.write, []

    def noted(record, *arguments, **options):
        write(record, *arguments, **options)
        decided.append(record.state)

    def refuse_once(*arguments, **options):
        if decided and not refused:
            refused.append(name)
            raise MemoryError("no room to map it")
        return original(*arguments, **options)

    monkeypatch.setattr(ApplicationRecord, "write", noted)
    monkeypatch.setattr(owner, name, refuse_once)
    if name == "ensure_group":
        assert store.commit_staged(APP, 0, messages).committed
    else:
        with pytest.raises(StagedJobIncompleteError, match="no room"):
            store.commit_staged(APP, 0, messages)
        assert not store.commit_staged(APP, 0, messages).committed
    assert refused == [name]
    assert store.application(APP).state == "complete"
    assert visible_numbers(store) == expected_numbers(JOB)
