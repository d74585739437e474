"""A staged job whose process runs out of memory, or of address space, after its decision."""

from __future__ import annotations

import pytest
from staged_jobs import (
    APP,
    expected_numbers,
    stage_job,
    visible_numbers,
)

from eoslog.errors import StagedJobIncompleteError
from eoslog.groups.offsets import GroupOffsets
from eoslog.staging.application import ApplicationRecord
from eoslog.storage.unified_log import UnifiedLog

JOB = range(200)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(UnifiedLog, "adopt"), (UnifiedLog, "make_durable"), (GroupOffsets, "ensure_group")],
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
            raise MemoryError  # Python gives it no text.
        return original(*arguments, **options)

    monkeypatch.setattr(ApplicationRecord, "write", noted)
    monkeypatch.setattr(owner, name, refuse_once)
    if name == "ensure_group":
        assert store.commit_staged(APP, 0, messages).committed
    else:
        with pytest.raises(StagedJobIncompleteError, match="yet: MemoryError"):
            store.commit_staged(APP, 0, messages)
        assert not store.commit_staged(APP, 0, messages).committed
    assert refused == [name]
    assert store.application(APP).state == "complete"
    assert visible_numbers(store) == expected_numbers(JOB)
