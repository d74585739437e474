"""Where staged jobs lie, as a snapshot is told: which are kept in mind, as what, and until when."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_jobs import APP, PARTITIONS, TOPIC

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StagedJobIncompleteError, StoreFullError
from eoslog.staging import spans as staged_spans
from eoslog.staging.application import ApplicationRecord
from eoslog.staging.spans import JobSpan, OffsetRange, thinned
from eoslog.staging.writer import StagedWriter
from eoslog.store.consistent_snapshot import consistent_offsets
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import RECENT_JOBS


def transactional(store, transactional_id):
    made = store.producer(transactional_id=transactional_id)
    made.init_transactions()
    return made


def open_transaction(store, *partitions, transactional_id="open"):
    made = transactional(store, transactional_id)
    made.begin_transaction()
    for number in partitions:
        made.append(TOPIC, partition=number, values=[b"open"])
    return made


def load(store, version, *partitions, app_id=APP, count=2):
    """A job with so many records in each of these partitions."""
    message = staged(store, version, *partitions, app_id=app_id, count=count)
    return store.commit_staged(app_id, version, [message])


def staged(store, version, *partitions, app_id=APP, count=2):
    writer = StagedWriter(store.path, app_id, f"{version}", "0", partitions={TOPIC: PARTITIONS})
    for number in partitions:
        writer.append(TOPIC, number, [b"%d" % version] * count)
    return writer.close()


def cuts(store, topics=None):
    found = store.snapshot(topics)
    return [found[TopicPartition(TOPIC, number)] for number in range(PARTITIONS)]


def spans(store) -> list[JobSpan]:
    with parts_of(store).staged.standing_still():
        return parts_of(store).staged.pending.spans()


def written(store) -> int:
    """How many records of recent jobs stand in the log."""
    partition = parts_of(store).files.partitions.state_partition(0)
    records, _ = partition.fetch_records(0, 10_000, 1 << 24)
    return sum(record.key == RECENT_JOBS.to_bytes(2, "big") for record in records)


# What a snapshot makes of them.


def test_without_transactions_nothing_is_kept_or_written(store):
    for version in range(3):
        load(store, version, 0, 1)
    assert cuts(store) == [6, 6, 0]
    assert spans(store) == []
    assert written(store) == 0


def test_a_job_behind_an_open_transaction_is_left_out_everywhere(store):
    load(store, 0, 0, 1, 2)
    held = open_transaction(store, 0)
    load(store, 1, 0, 1)
    load(store, 2, 1, 2)
    # The second is behind the first in partition 1.
    assert cuts(store) == [2, 2, 2]
    held.commit_transaction()
    assert cuts(store) == [6, 6, 4]


def test_a_job_that_touches_no_partition_of_an_open_transaction_is_in(store):
    held = open_transaction(store, 0)
    load(store, 0, 1, 2)
    assert cuts(store) == [0, 2, 2]
    held.abort_transaction()


def test_a_transaction_behind_a_job_that_is_left_out_is_left_out_too(store):
    held = open_transaction(store, 0)
    load(store, 0, 0, 1)
    with transactional(store, "behind").transaction() as behind:
        behind.append(TOPIC, partition=1, values=[b"t"])
        behind.append(TOPIC, partition=2, values=[b"t"])
    assert cuts(store) == [0, 0, 0]
    held.abort_transaction()
    assert cuts(store) == [4, 4, 2]


def test_a_job_behind_a_transaction_that_is_left_out_is_left_out_too(store):
    """All that is there up to the job's end is decided, in all of its partitions."""
    early = open_transaction(store, 1, transactional_id="early")
    held = open_transaction(store, 0)
    early.append(TOPIC, partition=0, values=[b"behind the open one"])
    early.commit_transaction()
    load(store, 0, 1, 2)
    partition = store.partition(TOPIC, 1)
    assert partition.last_stable_offset == partition.log_end_offset
    assert cuts(store) == [0, 0, 0]
    held.commit_transaction()
    assert cuts(store) == [4, 4, 2]


def test_a_transaction_that_began_before_the_job_and_ended_since(store):
    """The job was behind an open one when it came in, and is behind one that is left out now."""
    early = open_transaction(store, 1, transactional_id="early")
    load(store, 0, 1, 2)
    held = open_transaction(store, 0)
    early.append(TOPIC, partition=0, values=[b"behind the open one"])
    early.commit_transaction()
    assert cuts(store) == [0, 0, 0]
    held.commit_transaction()
    assert cuts(store) == [4, 4, 2]


def test_a_job_counts_in_the_partitions_that_are_asked_for(store):
    store.create_topic("other")
    held = open_transaction(store, 0)
    writer = StagedWriter(store.path, APP, "0", "0", partitions={TOPIC: PARTITIONS, "other": 1})
    writer.append(TOPIC, 0, [b"v"])
    writer.append(TOPIC, 1, [b"v"])
    writer.append("other", 0, [b"v"])
    store.commit_staged(APP, 0, [writer.close()])
    assert store.snapshot(["other"]) == {TopicPartition("other", 0): 1}
    assert set(store.snapshot([TOPIC, "other"]).values()) == {0}
    assert set(store.snapshot().values()) == {0}
    held.commit_transaction()
    assert store.snapshot(["other", TOPIC]) == store.snapshot()


def test_a_job_is_remembered_by_the_next_opening(tmp_path, store):
    token = None
    with store.producer(transactional_id="prepared") as made:
        made.init_transactions()
        made.begin_transaction()
        made.append(TOPIC, partition=0, values=[b"open"])
        token = made.prepare_transaction()
    load(store, 0, 0, 1)
    store.close()
    with eoslog.open(store.path) as opened:
        assert cuts(opened) == [0, 0, 0]
        opened.commit_prepared([token])
        assert cuts(opened) == [4, 2, 0]


def test_compaction_keeps_them(store):
    held = open_transaction(store, 0)
    load(store, 0, 0, 1)
    before = spans(store)
    partition = parts_of(store).files.partitions.state_partition(0)
    partition.roll()
    assert parts_of(store).files.compact(partition) == 1
    assert spans(store) == before
    assert cuts(store) == [0, 0, 0]
    held.abort_transaction()


def test_a_topic_made_anew_has_none_of_the_old_ones_jobs(store):
    store.create_topic("other")
    held = open_transaction(store, 0)
    writer = StagedWriter(store.path, APP, "0", "0", partitions={TOPIC: PARTITIONS, "other": 1})
    writer.append(TOPIC, 0, [b"v"])
    writer.append("other", 0, [b"v"])
    store.commit_staged(APP, 0, [writer.close()])
    store.delete_topic("other")
    store.create_topic("other")
    engine_of(store).partition("other", 0).append_columns([b"v"] * 3)
    assert store.snapshot()[TopicPartition("other", 0)] == 3
    load(store, 1, 0, 1)
    held.abort_transaction()
    assert cuts(store) == [5, 2, 0]


def test_what_retention_deleted_of_a_job_cuts_nothing(store):
    held = open_transaction(store, 0)
    load(store, 0, 0, 1)
    partition = engine_of(store).partition(TOPIC, 1)
    partition.roll()
    assert partition.delete_segments(2) == 1
    assert cuts(store) == [0, 2, 0]
    held.abort_transaction()


# Jobs that are not complete.


def test_of_a_job_that_only_its_record_is_missing_readers_see_all(store, monkeypatch):
    def no_room(record):
        raise StoreFullError("no room")

    held = open_transaction(store, 0)
    with monkeypatch.context() as patched:
        patched.setattr(ApplicationRecord, "completed", no_room)
        with pytest.raises(StagedJobIncompleteError):
            load(store, 0, 0, 1)
        assert cuts(store) == [0, 0, 0]
        held.commit_transaction()
        assert cuts(store) == [4, 2, 0]
        held.begin_transaction()
        held.append(TOPIC, partition=1, values=[b"open"])
        pending = parts_of(store).staged.pending
        span_count = len(pending.spans())
        with pytest.raises(StagedJobIncompleteError):
            pending.settle(APP)
        assert len(pending.spans()) == span_count, "it was noted once more"
    assert cuts(store) == [4, 2, 0]
    load(store, 1, 1, 2)
    assert store.application(APP).state == "complete"
    assert cuts(store) == [4, 2, 0]
    held.commit_transaction()
    assert cuts(store) == [4, 6, 2]


def test_where_it_cannot_be_noted_the_job_is_not_complete(store, monkeypatch):
    held = open_transaction(store, 0)
    append = CompactedLog.append

    def full(state_log, record_type, name, state, **options):
        if record_type == RECENT_JOBS:
            raise StoreFullError("no room")
        return append(state_log, record_type, name, state, **options)

    with monkeypatch.context() as patched:
        patched.setattr(CompactedLog, "append", full)
        with pytest.raises(StagedJobIncompleteError):
            load(store, 0, 0, 1)
        assert cuts(store) == [0, 0, 0]
    parts_of(store).staged.sweep()
    assert store.application(APP).state == "complete"
    assert cuts(store) == [0, 0, 0]
    held.commit_transaction()
    assert cuts(store) == [4, 2, 0]


def test_a_job_behind_one_that_is_stuck(store, monkeypatch):
    """No transaction is open, but one is left out that came in behind the stuck job."""
    from eoslog.storage.unified_log import UnifiedLog

    early = open_transaction(store, 1, transactional_id="early")

    def full(partition, staged_bytes, producer_id):
        raise StoreFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(UnifiedLog, "adopt", full)
        with pytest.raises(StagedJobIncompleteError):
            load(store, 0, 0, app_id="stuck")
    early.append(TOPIC, partition=0, values=[b"behind the stuck one"])
    with monkeypatch.context() as patched:
        early.commit_transaction()
        load(store, 0, 1, 2)
        assert store.application("stuck").state == "prepared"
        assert cuts(store) == [0, 0, 0]
    parts_of(store).staged.sweep()
    assert cuts(store) == [4, 4, 2]


# How long, and as what.


def test_they_are_forgotten_as_soon_as_nothing_is_open(store):
    held = open_transaction(store, 0)
    for version in range(5):
        load(store, version, 0, 1)
    assert sum(one.jobs for one in spans(store)) == 5
    held.commit_transaction()
    load(store, 5, 1)
    assert spans(store) == []
    count = written(store)
    load(store, 6, 0, 1)
    assert written(store) == count
    assert cuts(store) == [2 + 12, 14, 0]


def test_while_others_write_all_the_time_nothing_is_forgotten(store, monkeypatch):
    """It cannot be told that there was a moment without an open transaction."""
    load(store, 0, 0, 1)
    assert spans(store) == []
    ends = itertools.count()
    with monkeypatch.context() as patched:
        patched.setattr(CompactedLog, "ends", lambda state_log: {0: next(ends)})
        load(store, 1, 0, 1)
    assert [one.jobs for one in spans(store)] == [1]
    assert cuts(store) == [4, 4, 0]
    load(store, 2, 0)
    assert spans(store) == []


def test_a_transaction_that_no_coordinator_knows_of(store):
    """Somebody wrote its batch past the coordinator; it holds back a partition of the jobs."""
    made = transactional(store, "hanging")
    producer_id, epoch = made.producer_id, made.producer_epoch
    engine_of(store).partition(TOPIC, 0).append_columns(
        [b"hanging"],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    load(store, 0, 0, 1)
    assert cuts(store) == [0, 0, 0]


def test_what_is_decided_is_not_taken_together_with_what_is_not(store):
    """Else a snapshot would go back."""
    early = open_transaction(store, 2, transactional_id="early")
    for version in range(4):
        load(store, version, 0, 1)
    held = open_transaction(store, 0)
    for version in range(4, 40):
        load(store, version, 0, 1)
        assert cuts(store) == [8, 8, 0]
    assert len(spans(store)) < 20
    early.abort_transaction()
    held.abort_transaction()


@given(st.integers(0, 400))
def test_few_spans_stand_for_many_jobs(count):
    kept: list[JobSpan] = []
    for number in range(count):
        place = TopicPartition("t", number % 3)
        kept = thinned([*kept, JobSpan(1, {"t": "id"}, {place: OffsetRange(number, number + 1)})])
    assert sum(one.jobs for one in kept) == count
    assert len(kept) <= 2 * math.log2(count + 1) + 2
    newer = 0
    for span in reversed(kept):
        assert span.jobs == 1 or span.jobs <= newer
        newer += span.jobs
    for where in (TopicPartition("t", number) for number in range(3)):
        ranges = [one.ranges[where] for one in kept if where in one.ranges]
        assert all(
            one.upper_bound <= other.first_offset for one, other in itertools.pairwise(ranges)
        )


def test_jobs_of_many_partitions_are_taken_together_sooner(monkeypatch):
    monkeypatch.setattr(staged_spans, "SPANS_BYTES_MAX", 40 * 1000)
    ranges = {TopicPartition("t", number): OffsetRange(0, 1) for number in range(400)}
    kept = thinned([JobSpan(1, {"t": "id"}, ranges)] * 7)
    assert [one.jobs for one in kept] == [6, 1]


def test_a_span_comes_back_from_its_record():
    ranges = {TopicPartition("t", 0): OffsetRange(3, 9), TopicPartition("ä", 7): OffsetRange(0, 1)}
    span = JobSpan(4, {"t": "id", "ä": "other"}, ranges)
    assert JobSpan.of_record(json.loads(json.dumps(span.described()))) == span


class FakePartition:
    """So much of a partition as a snapshot asks for; it holds staged batches alone."""

    topic, topic_id, log_start_offset = "t", "id", 0

    def __init__(self, number: int, stable: int, end: int) -> None:
        self.topic_partition = TopicPartition("t", number)
        self.last_stable_offset = stable
        self.log_end_offset = end

    def take_in_transactions(self, *_: object) -> None:
        pass


@given(st.data())
def test_the_cuts_are_the_highest_that_cut_no_job(data):
    """All cuts of a small store are tried."""
    count = data.draw(st.integers(1, 3))
    ends = [0] * count
    jobs = []
    for _ in range(data.draw(st.integers(0, 5))):
        ranges = {}
        for number in data.draw(st.sets(st.integers(0, count - 1), min_size=1)):
            first = ends[number] + data.draw(st.integers(0, 1))
            ends[number] = first + data.draw(st.integers(1, 2))
            ranges[TopicPartition("t", number)] = OffsetRange(first, ends[number])
        jobs.append(JobSpan(1, {"t": "id"}, ranges))
    partitions = [
        FakePartition(number, data.draw(st.integers(0, end)), end)
        for number, end in enumerate(ends)
    ]
    stable = [one.last_stable_offset for one in partitions]
    found = consistent_offsets(partitions, stable, ends, jobs)  # type: ignore[arg-type]
    best = [0] * count
    for tried in _all_below([one.last_stable_offset for one in partitions]):
        if all(_is_whole(tried, job) for job in jobs):
            best = [max(pair) for pair in zip(best, tried, strict=True)]
    assert found == best


def _all_below(bounds: list[int]) -> Iterator[list[int]]:
    if not bounds:
        yield []
        return
    for rest in _all_below(bounds[1:]):
        for offset in range(bounds[0] + 1):
            yield [offset, *rest]


def _is_whole(tried: list[int], job: JobSpan) -> bool:
    sides = {
        "below"
        if tried[where.partition] >= one.upper_bound
        else "above"
        if tried[where.partition] <= one.first_offset
        else "cut"
        for where, one in job.ranges.items()
    }
    return sides in ({"below"}, {"above"}, set())
