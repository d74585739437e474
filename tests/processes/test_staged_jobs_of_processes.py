"""Staged jobs of a driver that dies at a step, while another process has the store open.

The test's own process lives on, with readers at the partitions: it sees nothing or all of the job
at each moment, completes what the dead one decided, and lets go of what it held.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.fork import WITHIN, Fork, Kill, dies_in_child, in_child
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    quick_directory,
    stage_job,
    value_of,
    visible_numbers,
)

import eoslog
from eoslog.bindings.record_batch import iter_batches
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    StagedRunFencedError,
    StoreFailedError,
    StoreFullError,
    UnstableOffsetCommitError,
)
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.records import decode_offset_key
from eoslog.staging import commit as staged_commit
from eoslog.staging import job as staged_job
from eoslog.staging import leftovers as staged_leftovers
from eoslog.staging.adoption import HeldPartitions
from eoslog.staging.application import ApplicationRecord
from eoslog.staging.commit import StagedCommits
from eoslog.staging.leftovers import Leftovers
from eoslog.staging.on_demand import VERSION_PARTITION
from eoslog.staging.spans import RecentJobs
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.compacted_log import CompactedLog

pytestmark = pytest.mark.crash

QUIET = {"eoslog.spare.segments": 0, "log.initial.task.delay.ms": 1 << 40}
BEFORE = range(40)
JOB = range(40, 340)
LATER = range(340, 360)
GROUP = "readers"
READ = TopicPartition(TOPIC, 0)


def offsets_of(version: int) -> dict[str, dict[TopicPartition, int]]:
    return {GROUP: {READ: 1000 + version}}


def adopt_half(adopt: Any, partition: UnifiedLog, staged: Any, producer_id: int) -> None:
    headers = iter_batches(staged)
    adopt(partition, bytes(staged[: headers[len(headers) // 2].position_bytes]), producer_id)


def sync_half(sync: Any, held: HeldPartitions) -> None:
    held.sync_partition(next(iter(held.wanted)))


def write_temporary(write: Any, path: Path, content: bytes, **_: Any) -> None:
    path.with_name(path.name + ".tmp").write_bytes(content[: len(content) // 2])


@pytest.fixture(autouse=True)
def parts_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, part in (
        ("adopt", adopt_half),
        ("sync", sync_half),
        ("write_atomically", write_temporary),
    ):
        monkeypatch.setitem(WITHIN, name, part)


@pytest.fixture(params=["commit", "process"])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A store in which an earlier job is already; nobody has it open."""
    with quick_directory(tmp_path) as directory:
        path = directory / "store"
        with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)
            store.commit_staged(APP, 0, stage_job(path, "run-0", BEFORE), offsets=offsets_of(0))
        yield path


def opened(path: Path, durability: str = "commit") -> eoslog.Store:
    store = eoslog.open(path, durability=durability, config=QUIET)
    parts_of(store).checkpointer.stop()  # What it does is done by the test.
    return store


@pytest.fixture
def store(path: Path, durability: str) -> Iterator[eoslog.Store]:
    with opened(path, durability) as store:
        visible_numbers(store)
        yield store


def commit_and_die(path: Path, durability: str, kill: Kill, **options: Any) -> None:
    messages = stage_job(path, "run-1", JOB, **options)

    def driver() -> None:
        store = opened(path, durability)
        assert not parts_of(store).files.session.first
        kill.arm()
        store.commit_staged(APP, 1, messages, offsets=offsets_of(1))
        parts_of(store).staged.clear_leftovers()
        raise AssertionError(f"the driver outlived {kill}")

    assert dies_in_child(driver)


def held_partitions(store: eoslog.Store) -> list[int]:
    return [
        number
        for number in range(PARTITIONS)
        if engine_of(store).partition(TOPIC, number).hold_offset >= 0
    ]


def check_offsets(store: eoslog.Store, versions: list[int]) -> None:
    """The newest version's offset is committed, and the version shown; the offsets once each."""
    groups = store.groups()
    assert groups[GROUP][READ].offset == 1000 + versions[-1]
    assert groups[APP][VERSION_PARTITION].offset == versions[-1]
    partition = parts_of(store).files.partitions.offsets_partition(
        parts_of(store).files.group_offsets.log.partition_of(GROUP)
    )
    assert partition.open_transactions() == []
    records, _ = partition.fetch_records(0, 10_000, 1 << 20)
    keys = [decode_offset_key(record.key) for record in records]
    assert [key.group for key in keys if key].count(GROUP) == len(versions)


def check_settled(store: eoslog.Store, *, decided: bool) -> None:
    """All or nothing, nobody held; then the driver starts anew."""
    expected = expected_numbers(BEFORE, JOB) if decided else expected_numbers(BEFORE)
    assert held_partitions(store) == []
    assert not parts_of(store).staged.pending.undone.flag.is_set
    assert visible_numbers(store) == expected
    check_offsets(store, [0, 1] if decided else [0])
    known = store.application(APP)
    assert known is not None
    assert (known.version, known.state) == (1 if decided else 0, "complete")
    path = store.path
    replay = stage_job(path, "run-2", JOB, tasks=5)
    result = store.commit_staged(APP, 1, replay, offsets=offsets_of(1))
    assert result.committed == (not decided)
    assert visible_numbers(store) == expected_numbers(BEFORE, JOB)
    assert store.commit_staged(APP, 2, stage_job(path, "run-3", LATER)).records == len(LATER)
    assert visible_numbers(store) == expected_numbers(BEFORE, JOB, LATER)
    assert store.verify() == []


BEFORE_DECISION = [
    *[Kill(staged_commit, "check_job", 1, when) for when in ("before", "after")],
    Kill(HeldPartitions, "hold_at_end", 1, "after"),
    *[Kill(HeldPartitions, "sync", 1, when) for when in ("before", "within", "after")],
    *[Kill(staged_job, "write_atomically", 1, when) for when in ("before", "within", "after")],
    Kill(CompactedLog, "append", 1, "before"),
    Kill(UnifiedLog, "append_columns", 1, "before"),
]
AFTER_DECISION = [
    Kill(UnifiedLog, "append_columns", 1, "after"),  # Written, and not yet synced.
    Kill(CompactedLog, "append", 1, "after"),
    *[
        Kill(UnifiedLog, "adopt", nth, when)
        for nth in range(1, 2 * PARTITIONS + 1)
        for when in ("before", "within", "after")
    ],
    *[Kill(HeldPartitions, "sync", 2, when) for when in ("before", "within", "after")],
    Kill(GroupOffsets, "adopt", 1, "before"),
    *[Kill(UnifiedLog, "append_marker", 1, when) for when in ("before", "after")],
    Kill(GroupOffsets, "adopt", 1, "after"),
    Kill(GroupOffsets, "ensure_group", 1, "after"),
    *[Kill(HeldPartitions, "release", 1, when) for when in ("before", "after")],
    *[Kill(UnifiedLog, "release_readers", nth, "after") for nth in (1, 2)],
    *[Kill(CompactedLog, "append", 2, when) for when in ("before", "after")],
    *[Kill(Leftovers, "put_away", 1, when) for when in ("before", "after")],
    *[Kill(staged_leftovers, "remove_tree", 1, when) for when in ("before", "after")],
    *[Kill(PartitionProducers, "forget_adopted", nth, "before") for nth in (1, 2, PARTITIONS + 1)],
]


ADOPTED = Kill(HeldPartitions, "release", 1, "before")
LETTING_IN = [Kill(UnifiedLog, "release_readers", nth, "after") for nth in range(1, PARTITIONS + 1)]


def skip_what_is_not_done(kill: Kill, durability: str) -> None:
    if durability == "process" and kill.owner is HeldPartitions and kill.name == "sync":
        pytest.skip("nothing is synced")


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("kill", BEFORE_DECISION, ids=str)
def test_killed_before_the_decision(path, store, durability, monkeypatch, kill):
    skip_what_is_not_done(kill, durability)
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    commit_and_die(path, durability, kill)
    assert visible_numbers(store) == expected_numbers(BEFORE)
    parts_of(store).staged.recover_dead_peers()
    check_settled(store, decided=False)


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("kill", AFTER_DECISION, ids=str)
def test_killed_after_the_decision(path, store, durability, kill):
    skip_what_is_not_done(kill, durability)
    commit_and_die(path, durability, kill)
    seen = visible_numbers(store)
    for number in range(PARTITIONS):
        # A reader of one partition sees none of the job or all of it there.
        assert seen[number] in (
            expected_numbers(BEFORE)[number],
            expected_numbers(BEFORE, JOB)[number],
        )
    parts_of(store).staged.recover_dead_peers()
    check_settled(store, decided=True)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("by", ["commit", "another application", "tick", "joiner", "next opener"])
@pytest.mark.parametrize(
    "kill",
    [
        Kill(HeldPartitions, "hold_at_end", 1, "after"),
        Kill(CompactedLog, "append", 1, "after"),
        Kill(UnifiedLog, "adopt", 3, "within"),
        Kill(CompactedLog, "append", 2, "before"),
    ],
    ids=str,
)
def test_whoever_comes_next_settles_it(path, kill, by):
    decided = kill.name != "hold_at_end"
    store = opened(path)
    try:
        visible_numbers(store)
        commit_and_die(path, "commit", kill)
        if by == "commit":
            result = store.commit_staged(APP, 1, stage_job(path, "run-9", JOB))
            assert result.committed == (not decided)
        elif by == "another application":
            store.commit_staged("other", 0, stage_job(path, "run-0", range(0), app_id="other"))
            assert store.application("other").version == 0
            parts_of(store).staged.sweep()  # It knows of what it found by then.
        elif by == "tick":
            parts_of(store).staged.recover_dead_peers()
        elif by == "joiner":
            assert in_child(lambda: opened(path).path.name) == "store"
        else:
            store.close()
            store = opened(path)
        assert held_partitions(store) == []
        assert visible_numbers(store) == (
            expected_numbers(BEFORE, JOB) if decided or by == "commit" else expected_numbers(BEFORE)
        )
        assert store.application(APP).state == "complete"
        assert not parts_of(store).staged.pending.undone.flag.is_set
    finally:
        store.close()


KILLS_OF_HELPERS = [
    Kill(HeldPartitions, "hold", 1, "after"),
    Kill(UnifiedLog, "adopt", 1, "before"),
    Kill(UnifiedLog, "adopt", 2, "within"),
    Kill(CompactedLog, "append", 1, "before"),
    Kill(CompactedLog, "append", 1, "after"),
]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("kill", KILLS_OF_HELPERS, ids=str)
def test_who_completes_it_dies_too(path, store, durability, kill):
    commit_and_die(path, durability, Kill(UnifiedLog, "adopt", 2, "within"))

    def helper() -> None:
        kill.arm()
        opened(path, durability)  # It settles what it finds.

    if dies_in_child(helper):
        dies_in_child(helper)
    parts_of(store).staged.recover_dead_peers()
    check_settled(store, decided=True)


@pytest.mark.parametrize("kill", KILLS_OF_HELPERS[:2], ids=str)
def test_who_takes_up_an_interrupted_decision_dies(path, store, durability, monkeypatch, kill):
    """Readers are let in, although the process that takes the decision back did not hold them."""
    write = ApplicationRecord.write

    def interrupted(record: ApplicationRecord, *arguments: Any, **options: Any) -> None:
        write(record, *arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(ApplicationRecord, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.commit_staged(APP, 1, stage_job(path, "run-1", JOB), offsets=offsets_of(1))
    monkeypatch.undo()

    def helper() -> None:
        kill.arm()
        opened(path, durability)  # It settles what it finds.

    assert dies_in_child(helper)
    assert held_partitions(store) == list(range(PARTITIONS))
    parts_of(store).staged.recover_dead_peers()
    check_settled(store, decided=False)


def test_readers_stop_at_the_bounds_of_another_processs_job(path, store, durability):
    """While one process adopts, consumers of another one see nothing of it; then all."""
    consumer = store.consumer(auto_offset_reset="earliest")
    consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
    assert len(consumer.poll(max_records=1000, timeout=1)) == len(BEFORE)
    commit_and_die(path, durability, Kill(HeldPartitions, "release", 1, "before"))
    assert consumer.poll(max_records=1000, timeout=0.05) == []
    assert sum(store.partition(TOPIC, n).log_end_offset for n in range(PARTITIONS)) == 340
    parts_of(store).staged.recover_dead_peers()
    assert len(consumer.poll(max_records=1000, timeout=1)) == len(JOB)


@pytest.mark.parametrize("kill", [ADOPTED, *LETTING_IN], ids=str)
def test_a_snapshot_sees_all_of_a_dead_processs_job_or_nothing(path, store, durability, kill):
    """Also where the job cannot be completed yet."""
    commit_and_die(path, durability, kill)
    cuts = store.snapshot([TOPIC])
    seen = [cuts[TopicPartition(TOPIC, number)] for number in range(PARTITIONS)]
    before, after = (
        [len(of_partition) for of_partition in expected_numbers(*jobs).values()]
        for jobs in ((BEFORE,), (BEFORE, JOB))
    )
    assert seen in (before, after)
    parts_of(store).staged.recover_dead_peers()
    check_settled(store, decided=True)


BEHIND_AN_OPEN_ONE = [
    ADOPTED,
    *LETTING_IN,
    *[Kill(RecentJobs, "note", 1, when) for when in ("before", "after")],
    *[Kill(CompactedLog, "append", nth, when) for nth in (2, 3) for when in ("before", "after")],
    Kill(Leftovers, "put_away", 1, "before"),
    Kill(staged_leftovers, "remove_tree", 1, "before"),
    Kill(PartitionProducers, "forget_adopted", 2, "before"),
]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("kill", BEHIND_AN_OPEN_ONE, ids=str)
def test_a_snapshot_cuts_no_job_of_a_dead_process_behind_an_open_transaction(
    path, store, durability, kill
):
    """One partition of the job is held back: a snapshot leaves it out everywhere."""

    def seen() -> list[int]:
        cuts = store.snapshot([TOPIC])
        return [cuts[TopicPartition(TOPIC, number)] for number in range(PARTITIONS)]

    def counts(*jobs: range) -> list[int]:
        return [len(of_partition) for of_partition in expected_numbers(*jobs).values()]

    with store.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.append(TOPIC, partition=0, values=[b"0000000"])
        commit_and_die(path, durability, kill)
        assert seen() == counts(BEFORE)
        parts_of(store).staged.recover_dead_peers()
        assert seen() == counts(BEFORE)
        store.commit_staged(APP, 2, stage_job(path, "run-3", LATER), offsets=offsets_of(2))
        assert seen() == counts(BEFORE)
        producer.abort_transaction()
    assert seen() == [
        count + (2 if number == 0 else 0) for number, count in enumerate(counts(BEFORE, JOB, LATER))
    ]


def test_offsets_of_a_decided_job_are_unstable_in_every_process(path, store, durability):
    commit_and_die(path, durability, Kill(UnifiedLog, "adopt", 2, "before"))
    fetch = parts_of(store).files.group_offsets.fetch
    with pytest.raises(UnstableOffsetCommitError):
        fetch(GROUP, READ, require_stable=True)
    assert not parts_of(store).files.group_offsets.is_stable(GROUP, READ)
    parts_of(store).staged.recover_dead_peers()
    assert fetch(GROUP, READ, require_stable=True).offset == 1001
    assert parts_of(store).files.group_offsets.is_stable(GROUP, READ)


def test_a_job_that_lacks_room_is_completed_by_another_process(path, store, durability):
    """The driver's process lives, cannot go on, and finds the work done."""
    messages = stage_job(path, "run-1", JOB)
    parts_of(store).staged._retry_due_s = 0.0
    with pytest.MonkeyPatch.context() as patched:

        def full(*_: Any) -> None:
            raise StoreFullError("no room")

        patched.setattr(UnifiedLog, "adopt", full)
        with pytest.raises(eoslog.errors.StagedJobIncompleteError):
            store.commit_staged(APP, 1, messages, offsets=offsets_of(1))
    assert parts_of(store).staged.pending.undone.flag.is_set
    assert len(held_partitions(store)) == PARTITIONS

    def other() -> list[Any]:
        joined = opened(path, durability)
        found = joined.application(APP)
        numbers = visible_numbers(joined)
        # Its own job on the same partitions.
        joined.commit_staged("other", 0, stage_job(path, "run-0", LATER, app_id="other"))
        joined.close()
        return [found.state, {str(one): held for one, held in numbers.items()}]

    state, numbers = in_child(other)
    assert state == "complete"
    assert {int(one): held for one, held in numbers.items()} == expected_numbers(BEFORE, JOB)
    assert visible_numbers(store) == expected_numbers(BEFORE, JOB, LATER)
    parts_of(store).staged.sweep()
    assert parts_of(store).staged.pending.by_name == {}
    assert visible_numbers(store) == expected_numbers(BEFORE, JOB, LATER)
    check_offsets(store, [0, 1])


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("acted", [False, True])
def test_an_interrupted_decision_is_taken_back_unless_another_process_acted(
    path, store, durability, monkeypatch, written, acted
):
    write = ApplicationRecord.write

    def interrupted(record: ApplicationRecord, *arguments: Any, **options: Any) -> None:
        if written:
            write(record, *arguments, **options)
        raise KeyboardInterrupt

    messages = stage_job(path, "run-1", JOB)
    monkeypatch.setattr(ApplicationRecord, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.commit_staged(APP, 1, messages)
    monkeypatch.undo()
    if acted:
        in_child(lambda: opened(path, durability).close())
    result = store.commit_staged(APP, 1, messages if not acted else stage_job(path, "run-2", JOB))
    assert result.committed == (not (written and acted))
    assert held_partitions(store) == []
    assert visible_numbers(store) == expected_numbers(BEFORE, JOB)
    assert not parts_of(store).staged.pending.undone.flag.is_set


def test_a_decision_whose_sync_failed_is_acted_on_by_nobody(path, monkeypatch):
    store = opened(path)
    messages = stage_job(path, "run-1", JOB)
    sync = UnifiedLog.make_durable

    def failing(partition: UnifiedLog, offset: int) -> None:
        if partition.topic == "__transaction_state":
            raise StoreFailedError("the disk is gone")
        sync(partition, offset)

    monkeypatch.setattr(UnifiedLog, "make_durable", failing)
    with pytest.raises(StoreFailedError):
        store.commit_staged(APP, 1, messages)

    def other() -> list[Any]:
        joined = opened(path)
        parts_of(joined).staged.sweep()
        return [joined.application(APP).state, joined.partition(TOPIC, 0).log_end_offset]

    end = store.partition(TOPIC, 0).log_end_offset
    assert in_child(other) == ["prepared", end]
    assert visible_numbers(store) == expected_numbers(BEFORE)
    monkeypatch.undo()
    store.close()
    with opened(path) as store:
        assert store.application(APP).state == "complete"


def test_jobs_of_two_processes_take_turns(path, store, durability):
    """Both write to all partitions; each job's records stand together within its bounds."""
    rounds = 8
    mine = [
        stage_job(path, f"run-{n}", range(1000 + 10 * n, 1010 + 10 * n), app_id="mine")
        for n in range(rounds)
    ]
    theirs = [
        stage_job(path, f"run-{n}", range(2000 + 10 * n, 2010 + 10 * n), app_id="theirs")
        for n in range(rounds)
    ]

    def other() -> int:
        with opened(path, durability) as joined:
            return sum(
                joined.commit_staged("theirs", version, messages).committed
                for version, messages in enumerate(theirs)
            )

    with Fork(lambda _: other()) as child:
        for version, messages in enumerate(mine):
            assert store.commit_staged("mine", version, messages).committed
        assert child.end() == rounds
    found = visible_numbers(store)
    assert sorted(one for held in found.values() for one in held) == sorted(
        [*BEFORE, *range(1000, 1080), *range(2000, 2080)]
    )
    assert store.verify() == []
    assert held_partitions(store) == []


def test_a_newer_run_in_another_process_fences_the_older(path, store, durability):
    run = store.begin_run(APP)

    def newer() -> str:
        with opened(path, durability) as joined:
            return joined.begin_run(APP)

    assert in_child(newer) > run
    with pytest.raises(StagedRunFencedError, match=r"of process [0-9]+ on "):
        store.commit_staged(APP, 1, stage_job(path, run, JOB))
    assert visible_numbers(store) == expected_numbers(BEFORE)


def test_a_topic_deleted_by_another_process_leaves_a_job_without_it(path, store, durability):
    store.create_topic("gone", partitions=PARTITIONS)
    messages = stage_job(path, "run-1", JOB)
    gone = stage_job(path, "run-1", JOB, topic="gone", name="g")

    def driver() -> None:
        joined = opened(path, durability)
        Kill(UnifiedLog, "adopt", 4, "within").arm()
        joined.commit_staged(APP, 1, [*messages, *gone], offsets=offsets_of(1))

    assert dies_in_child(driver)

    def deleter() -> None:
        # Whoever joins completes the job; so this one is told not to.
        StagedCommits.join = lambda self: None  # type: ignore[method-assign]
        opened(path, durability).delete_topic("gone")

    in_child(deleter)
    assert "gone" not in store.topics()
    parts_of(store).staged.recover_dead_peers()
    check_settled(store, decided=True)


# Files that become segments.


def test_a_file_that_became_a_segment_is_followed(store, durability, monkeypatch):
    """Also by a process that has the empty segment open whose name the file took."""
    monkeypatch.setattr(staged_job, "WHOLE_FILE_BYTES_MIN", 0)
    other = "fresh"
    store.create_topic(other, partitions=PARTITIONS)
    assert visible_numbers(store, other) == expected_numbers()
    first, second = range(400, 460), range(460, 520)

    def commit(version: int, topic: str, numbers: range) -> None:
        def driver() -> str:
            with opened(store.path, durability) as mine:
                messages = stage_job(
                    mine.path, f"run-{version}", numbers, topic=topic, durability=durability
                )
                mine.commit_staged(APP, version, messages)
            return "committed"

        assert in_child(driver) == "committed"

    commit(1, other, first)
    assert visible_numbers(store, other) == expected_numbers(first)
    commit(2, TOPIC, JOB)
    assert visible_numbers(store) == expected_numbers(BEFORE, JOB)
    # And what is appended here is behind it, for everybody.
    with store.producer() as producer:
        for number in range(PARTITIONS):
            producer.append(other, partition=number, values=[value_of(600 + number)])
    commit(3, other, second)
    expected = expected_numbers(first, range(0), second)
    for number, found in visible_numbers(store, other).items():
        cut = len(expected_numbers(first)[number])
        assert found == [*expected[number][:cut], 600 + number, *expected[number][cut:]]
    assert store.verify() == []
