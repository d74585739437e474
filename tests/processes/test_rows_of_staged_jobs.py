"""Rows of a staged job's producers that another process gathered in the middle of its adoption."""

from __future__ import annotations

import pytest
from harness.crew import started
from staged_jobs import APP, PARTITIONS, TOPIC, stage_job, visible_numbers

import eoslog
from eoslog.bindings.record_batch import iter_batches
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of

# It gathers the rows of partition 0 when it is told, and writes them when it is told again.
LATE_WRITER = """
import eoslog
from eoslog.storage.producer_rows import ProducerRows
write = ProducerRows.write_rows
def write_late(*arguments, **named):
    say("gathered")
    wait()
    return write(*arguments, **named)
ProducerRows.write_rows = write_late
with eoslog.open({path!r}) as store:
    partition = engine_of(store).partition({topic!r}, 0)
    say("open")
    wait()
    partition.producer_state.persist()
    say(partition.producer_state.persisted_offset)
    wait()
"""
QUIET = {
    "eoslog.spare.segments": 0,
    "log.initial.task.delay.ms": 1 << 40,
    "eoslog.checkpoint.interval.ms": 1 << 40,
}


@pytest.mark.parametrize("last", ["append", "close"])
def test_rows_of_half_a_job_are_not_left(tmp_path, monkeypatch, last):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, config=QUIET) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS)
        store.producer().append(TOPIC, partition=0, values=[b"9999998"])
        partition = engine_of(store).partition(TOPIC, 0)
        partition.producer_state.persist()
        code = LATE_WRITER.format(path=str(path), topic=TOPIC)
        with started(code) as other:
            other.hear("open")
            adopt = UnifiedLog.adopt

            def adopt_by_halves(self, staged, producer_id):
                if self is partition and len(iter_batches(staged)) > 1:
                    middle = iter_batches(staged)[1].position_bytes
                    adopt(self, staged[:middle], producer_id)
                    other.tell()
                    other.hear("gathered")
                return adopt(self, staged, producer_id)

            monkeypatch.setattr(UnifiedLog, "adopt", adopt_by_halves)
            messages = stage_job(path, "run", range(300), tasks=1)
            store.commit_staged(APP, 0, messages)
            monkeypatch.undo()
            parts_of(store).staged.clear_leftovers()
            staged_ids = {file.producer_id for message in messages for file in message.files}
            assert not any(partition.producer(one) for one in staged_ids), "they were forgotten"
            other.tell()
            written = int(other.hear().word)
            assert partition.producer_state.persisted_offset < written < partition.log_end_offset
            if last == "append":
                store.producer().append(TOPIC, partition=0, values=[b"9999999"])
                partition.producer_state.persist()
                assert partition.producer_state.persisted_offset == partition.log_end_offset
                assert store.verify() == []
            other.kill()  # Its own next rows would put it right.
    with eoslog.open(path, config=QUIET) as store:
        assert store.verify() == []
        assert visible_numbers(store)[0][:1] == [9999998]
