"""Staged jobs whose tasks and drivers are killed at every step of `docs/staged-commit.md`.

A child process is forked and kills itself with SIGKILL at a chosen call of a chosen function. Then
this process opens the store: all of the job is there or nothing, as the step says, and after the
job was run again all of it is there once.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.fork import WITHIN, Fork, Kill, die, dies_in_child, in_child
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    quick_directory,
    stage,
    stage_job,
    staged_files,
    staged_producers,
    value_of,
    visible_numbers,
)

import eoslog
from eoslog.bindings.record_batch import iter_batches
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StagedCommitError, StagedRunFencedError
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.records import decode_offset_key
from eoslog.staging import attempt_files
from eoslog.staging import commit as staged_commit
from eoslog.staging import job as staged_job
from eoslog.staging import leftovers as staged_leftovers
from eoslog.staging.adoption import HeldPartitions
from eoslog.staging.attempt_files import AttemptFiles
from eoslog.staging.leftovers import Leftovers
from eoslog.staging.message import StagedMessage
from eoslog.staging.on_demand import VERSION_PARTITION
from eoslog.staging.writer import StagedWriter
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.compacted_log import CompactedLog

pytestmark = pytest.mark.crash

BEFORE = range(40)
JOB = range(40, 340)
FILES = 2 * PARTITIONS  # Two tasks, each with a file for each partition.
GROUP = "readers"
READ = TopicPartition(TOPIC, 0)


def offsets_of(version: int) -> dict[str, dict[TopicPartition, int]]:
    """What the job of a version commits."""
    return {GROUP: {READ: 1000 + version}}


def groups_partition(store: eoslog.Store) -> UnifiedLog:
    """Where the group's offsets are."""
    return parts_of(store).files.partitions.offsets_partition(
        parts_of(store).files.group_offsets.log.partition_of(GROUP)
    )


def check_offsets(store: eoslog.Store, versions: list[int]) -> None:
    """The newest version's offset is committed, and the version shown; the offsets once each."""
    assert groups_partition(store).open_transactions() == []
    groups = store.groups()
    assert groups[GROUP][READ].offset == 1000 + versions[-1]
    assert groups[APP][VERSION_PARTITION].offset == versions[-1]
    records, _ = groups_partition(store).fetch_records(0, 10_000, 1 << 20)
    keys = [decode_offset_key(record.key) for record in records]
    assert [key.group for key in keys].count(GROUP) == len(versions)


def write_half(write: Callable[..., int], descriptor: int, data: bytes) -> None:
    write(descriptor, data[: len(data) // 2])


def adopt_half(adopt: Callable[..., Any], partition: UnifiedLog, staged: Any, pid: int) -> None:
    headers = iter_batches(staged)
    assert len(headers) > 1
    adopt(partition, bytes(staged[: headers[len(headers) // 2].position_bytes]), pid)


def sync_half(sync: Callable[..., Any], held: HeldPartitions) -> None:
    held.sync_partition(next(iter(held.wanted)))


def remove_half(remove: Callable[..., Any], path: Path, staging_path: Path, *_: Any) -> None:
    files = [one for one in path.rglob("*") if one.is_file()]
    for one in files[: len(files) // 2]:
        one.unlink()


def write_temporary(write: Callable[..., Any], path: Path, content: bytes, **_: Any) -> None:
    path.with_name(path.name + ".tmp").write_bytes(content[: len(content) // 2])


WITHIN.update(
    write=write_half,
    adopt=adopt_half,
    sync=sync_half,
    remove_tree=remove_half,
    write_atomically=write_temporary,
)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A store in which an earlier job is already; nobody has it open."""
    with quick_directory(tmp_path) as directory:
        path = directory / "store"
        with eoslog.open(path, create=True) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)
            messages = stage_job(path, "run-0", BEFORE)
            store.commit_staged(APP, 0, messages, offsets=offsets_of(0))
        yield path


def commit_and_die(path: Path, messages: list[StagedMessage], kill: Kill) -> None:
    def driver() -> None:
        store = eoslog.open(path)
        kill.arm()
        store.commit_staged(APP, 1, messages, offsets=offsets_of(1))
        parts_of(store).staged.clear_leftovers()
        raise AssertionError(f"the driver outlived {kill}")

    assert dies_in_child(driver)


def open_and_die(path: Path, kill: Kill) -> bool:
    """Whether the child died while it rolled the job forward."""

    def opener() -> str:
        kill.arm()
        parts_of(eoslog.open(path)).staged.clear_leftovers()
        return "opened"

    return dies_in_child(opener)


def check_exactly_once(path: Path, *, decided: bool) -> None:
    """All or nothing on the first look; then, whatever the driver does next, all of it once."""
    with eoslog.open(path) as store:
        expected = expected_numbers(BEFORE, JOB) if decided else expected_numbers(BEFORE)
        assert visible_numbers(store) == expected
        check_offsets(store, [0, 1] if decided else [0])
        state = store.application(APP)
        assert (state.version, state.state) == (1 if decided else 0, "complete")
        parts_of(store).staged.sweep()
        left = {name.split("/")[1] for name in staged_files(path)}
        assert left <= (set() if decided else {"run-1"})
        # The driver starts anew: another run, and more tasks.
        replay = stage_job(path, "run-2", JOB, tasks=5)
        result = store.commit_staged(APP, 1, replay, offsets=offsets_of(1))
        assert result.committed == (not decided)
        assert visible_numbers(store) == expected_numbers(BEFORE, JOB)
        assert store.verify() == []
        messages = stage_job(path, "run-3", range(340, 360))
        assert store.commit_staged(APP, 2, messages, offsets=offsets_of(2)).records == 20
    with eoslog.open(path) as store:
        check_offsets(store, [0, 1, 2])
        expected = expected_numbers(BEFORE, JOB, range(340, 360))
        assert visible_numbers(store) == expected
        assert store.verify() == []


# The task: W1 to W5.

TASK_KILLS = [
    *[Kill(AttemptFiles, "_make_directory", 1, when) for when in ("before", "after")],
    *[Kill(AttemptFiles, "file_for", nth, "after") for nth in (1, 2, 3)],
    *[
        Kill(attempt_files.os, "write", nth, when)
        for nth in (1, 2, 9)
        for when in ("before", "within", "after")
    ],
    *[
        Kill(attempt_files.os, "fsync", nth, when)
        for nth in (1, PARTITIONS, PARTITIONS + 1, PARTITIONS + 5)
        for when in ("before", "after")
    ],
    Kill(StagedWriter, "close", 1, "after"),
]


@pytest.mark.parametrize("kill", TASK_KILLS, ids=str)
def test_a_task_killed_anywhere_leaves_nothing_that_counts(path, tmp_path, kill):
    half = JOB[:150]

    def task() -> None:
        kill.arm()
        stage(path, "run-1", "000000-0", half)

    assert dies_in_child(task)
    # The retry, and the job's other task.
    messages = [
        stage(path, "run-1", "000000-1", half),
        stage(path, "run-1", "000001-0", JOB[150:]),
    ]
    with eoslog.open(path) as store:
        assert visible_numbers(store) == expected_numbers(BEFORE)
        assert store.commit_staged(APP, 1, messages).committed
        assert visible_numbers(store) == expected_numbers(BEFORE, JOB)
        assert staged_files(path) == []


def test_a_message_that_names_a_killed_tasks_file_is_refused(path, tmp_path):
    """A driver that got a message must not lose rows: the torn file is noticed."""
    messages = stage_job(path, "run-1", JOB)
    torn = path / "staging" / APP / "run-1" / messages[0].attempt / messages[0].files[0].name
    whole = torn.read_bytes()
    with eoslog.open(path) as store:
        for cut in random.Random(5).sample(range(len(whole)), 40):
            torn.write_bytes(whole[:cut])
            with pytest.raises(StagedCommitError):
                store.commit_staged(APP, 1, messages)
            torn.write_bytes(whole[:cut] + bytes(len(whole) - cut))
            if cut < len(whole.rstrip(b"\0")):
                with pytest.raises(StagedCommitError):
                    store.commit_staged(APP, 1, messages)
        torn.write_bytes(whole)
        assert store.commit_staged(APP, 1, messages).committed
        assert visible_numbers(store) == expected_numbers(BEFORE, JOB)


# The driver: D1 to F.

BEFORE_DECISION = [
    *[Kill(staged_commit, "check_job", 1, when) for when in ("before", "after")],
    Kill(HeldPartitions, "hold_at_end", 1, "after"),
    *[Kill(HeldPartitions, "sync", 1, when) for when in ("before", "within", "after")],
    *[Kill(staged_job, "write_atomically", 1, when) for when in ("before", "within", "after")],
    Kill(CompactedLog, "append", 1, "before"),
    Kill(UnifiedLog, "append_columns", 1, "before"),
]
ADOPTION = [
    Kill(UnifiedLog, "adopt", nth, when)
    for nth in range(1, FILES + 1)
    for when in ("before", "within", "after")
]
AFTER_ADOPTION = [
    Kill(HeldPartitions, "release", 1, "before"),
    Kill(HeldPartitions, "release", 1, "after"),
    *[Kill(CompactedLog, "append", 2, when) for when in ("before", "after")],
    *[
        Kill(owner, name, nth, when)
        for owner, name, nth in (
            (GroupOffsets, "adopt", 1),
            (GroupOffsets, "ensure_group", 1),
            (UnifiedLog, "append_columns", 2),  # The offsets,
            (UnifiedLog, "append_marker", 1),  # their marker,
            (UnifiedLog, "append_columns", 3),  # the complete record.
        )
        for when in ("before", "after")
    ],
    *[Kill(Leftovers, "put_away", 1, when) for when in ("before", "after")],
    *[Kill(staged_leftovers, "remove_tree", 1, when) for when in ("before", "within", "after")],
    *[
        Kill(PartitionProducers, "forget_adopted", nth, when)
        for nth in (1, 2, PARTITIONS, PARTITIONS + 1)
        for when in ("before", "after")
    ],
]
AFTER_DECISION = [
    Kill(UnifiedLog, "append_columns", 1, "after"),  # Written, and not yet synced.
    Kill(CompactedLog, "append", 1, "after"),
    *ADOPTION,
    *[Kill(HeldPartitions, "sync", 2, when) for when in ("before", "within", "after")],
    *AFTER_ADOPTION,
]


@pytest.mark.parametrize("kill", BEFORE_DECISION, ids=str)
def test_a_driver_killed_before_its_decision_leaves_nothing(path, monkeypatch, kill):
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    commit_and_die(path, stage_job(path, "run-1", JOB), kill)
    check_exactly_once(path, decided=False)


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("kill", AFTER_DECISION, ids=str)
def test_a_driver_killed_after_its_decision_leaves_all_of_it(path, kill):
    commit_and_die(path, stage_job(path, "run-1", JOB), kill)
    check_exactly_once(path, decided=True)


@pytest.mark.parametrize("kill", [ADOPTION[4], *AFTER_ADOPTION[:3]], ids=str)
def test_a_long_list_of_files_is_found_again(path, monkeypatch, kill):
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    commit_and_die(path, stage_job(path, "run-1", JOB), kill)
    check_exactly_once(path, decided=True)


@pytest.mark.every_nth(2)
@pytest.mark.parametrize(
    "kill",
    [Kill(HeldPartitions, "sync", 2, when) for when in ("before", "within", "after")]
    + [kill for kill in AFTER_ADOPTION if kill.owner is not PartitionProducers],
    ids=str,
)
def test_a_job_that_is_in_the_log_is_found_without_its_directory(path, kill):
    """Its record says that it is decided, not what there is in `staging`."""
    commit_and_die(path, stage_job(path, "run-1", JOB), kill)
    shutil.rmtree(path / "staging")
    check_exactly_once(path, decided=True)


@pytest.mark.parametrize("kill", [ADOPTION[4], ADOPTION[7], AFTER_ADOPTION[0]], ids=str)
def test_records_older_than_any_expiry_are_adopted_once_too(path, kill):
    """What a producer's records say of the time must not make a partition forget it too early."""
    stamps = list(range(len(JOB)))
    half = len(JOB) // 2
    messages = [
        stage(path, "run-1", "0", JOB[:half], timestamps=stamps[:half]),
        stage(path, "run-1", "1", JOB[half:], timestamps=stamps[half:]),
    ]
    commit_and_die(path, messages, kill)
    check_exactly_once(path, decided=True)


@pytest.mark.parametrize("kill", [*ADOPTION[::4], *AFTER_ADOPTION[:4]], ids=str)
def test_a_job_larger_than_a_segment_is_adopted_over_several(path, kill):
    topic = "rolling"
    with eoslog.open(path) as store:
        config = {"segment.bytes": 2048, "max.message.bytes": 1024}
        store.create_topic(topic, partitions=PARTITIONS, config=config)
    commit_and_die(path, stage_job(path, "run-1", JOB, topic=topic), kill)
    for _ in range(2):
        with eoslog.open(path) as store:
            assert visible_numbers(store, topic) == expected_numbers(JOB)
            assert visible_numbers(store) == expected_numbers(BEFORE)
            assert all(
                engine_of(store).partition(topic, number).segment_count > 2 for number in (0, 1, 2)
            )
            assert not store.commit_staged(
                APP, 1, stage_job(path, "run-2", JOB, topic=topic)
            ).committed
            assert store.verify() == []


# Again while it goes on.

FIRST = [Kill(CompactedLog, "append", 1, "after"), ADOPTION[4], ADOPTION[-1]]
SECOND = [
    *[Kill(UnifiedLog, "adopt", nth, when) for nth in (1, 3) for when in ("within", "after")],
    *[Kill(HeldPartitions, "sync", 1, when) for when in ("before", "within", "after")],
    *[Kill(CompactedLog, "append", 1, when) for when in ("before", "after")],
    *[Kill(Leftovers, "put_away", 1, when) for when in ("before", "after")],
    *[Kill(staged_leftovers, "remove_tree", 1, when) for when in ("within", "after")],
    Kill(PartitionProducers, "forget_adopted", 2, "after"),
    *[Kill(GroupOffsets, "adopt", 1, when) for when in ("before", "after")],
    *[Kill(UnifiedLog, "append_marker", 1, when) for when in ("before", "after")],
    *[Kill(GroupOffsets, "ensure_group", 1, when) for when in ("before", "after")],
]


@pytest.mark.every_nth(7)
@pytest.mark.parametrize("second", SECOND, ids=str)
@pytest.mark.parametrize("first", FIRST, ids=str)
def test_whoever_completes_the_job_may_be_killed_too(path, first, second):
    commit_and_die(path, stage_job(path, "run-1", JOB), first)
    died = open_and_die(path, second)
    assert died or second.name == "adopt", "nothing was left to adopt where it should die"
    check_exactly_once(path, decided=True)


@pytest.mark.parametrize("first", FIRST, ids=str)
def test_it_may_be_killed_any_number_of_times(path, first):
    commit_and_die(path, stage_job(path, "run-1", JOB), first)
    for _ in range(FILES):
        open_and_die(path, Kill(UnifiedLog, "adopt", 1, "within"))
        open_and_die(path, Kill(UnifiedLog, "adopt", 1, "after"))
    check_exactly_once(path, decided=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_unsynced_bytes_of_an_adoption_may_be_lost(path, seed):
    """A power cut in adoption: each partition keeps what was synced, and some of what was not."""
    noise = random.Random(seed)
    bounds = {}
    with eoslog.open(path) as store:
        for number in range(PARTITIONS):
            partition = store.partition(TOPIC, number)
            bounds[number] = (partition.size_bytes, partition.segments()[-1]["path"])
    commit_and_die(path, stage_job(path, "run-1", JOB), noise.choice(ADOPTION))
    for position, segment in bounds.values():
        data = bytearray(Path(segment).read_bytes())
        kept = position + noise.randrange(0, max(1, len(data) - position))
        data[kept:] = bytes(len(data) - kept)
        Path(segment).write_bytes(data)
    check_exactly_once(path, decided=True)


@pytest.mark.parametrize(
    "kill",
    [
        Kill(UnifiedLog, "append_marker", 1, "before"),
        Kill(GroupOffsets, "adopt", 1, "after"),
        Kill(HeldPartitions, "release", 1, "before"),
        Kill(HeldPartitions, "release", 1, "after"),
    ],
    ids=str,
)
def test_offsets_that_were_not_synced_may_be_lost(path, kill):
    """A power cut before the offsets are on disk: they come back with the rest of the job."""
    with eoslog.open(path) as store:
        partition = groups_partition(store)
        position, segment = partition.size_bytes, partition.segments()[-1]["path"]
    commit_and_die(path, stage_job(path, "run-1", JOB), kill)
    data = Path(segment).read_bytes()
    assert any(data[position:]), "nothing was appended that could be lost"
    Path(segment).write_bytes(data[:position] + bytes(len(data) - position))
    check_exactly_once(path, decided=True)


# Zombies.


@pytest.mark.parametrize("decision", ["commit", "give up"])
def test_a_zombie_that_writes_on_after_the_decision_changes_nothing(path, decision):
    """An attempt that nobody waits for any more goes on for seconds."""

    def write_on(fork: Fork) -> str:
        writer = StagedWriter(
            path, APP, "run-1", "zombie", partitions={TOPIC: PARTITIONS}, batch_bytes_max=300
        )
        writer.append(TOPIC, 0, [value_of(number) for number in JOB])
        fork.say("at work")
        fork.wait()
        try:
            for number in range(PARTITIONS):
                writer.append(TOPIC, number, [value_of(number) for number in JOB])
            writer.close()
        except StagedCommitError:
            return "told"
        return "wrote all"

    zombie = Fork(write_on)
    zombie.hear()
    assert (path / "staging" / APP / "run-1" / "zombie").is_dir()
    messages = stage_job(path, "run-1", JOB)
    with eoslog.open(path) as store:
        if decision == "commit":
            assert store.commit_staged(APP, 1, messages).committed
        else:
            assert store.sweep_run(APP, "run-1") > 0
        zombie.tell()
        assert zombie.end() == "told"
        expected = expected_numbers(BEFORE, JOB) if decision == "commit" else None
        assert visible_numbers(store) == (expected or expected_numbers(BEFORE))
        parts_of(store).staged.sweep()
        assert staged_files(path) == []


def test_an_attempt_that_begins_after_the_decision_changes_nothing(path):
    messages = stage_job(path, "run-1", JOB)
    with eoslog.open(path) as store:
        store.commit_staged(APP, 1, messages)
    late = stage(path, "run-1", "late", JOB)
    with eoslog.open(path) as store:
        assert not store.commit_staged(APP, 1, [*messages, late]).committed
        assert visible_numbers(store) == expected_numbers(BEFORE, JOB)
        parts_of(store).staged.clear_leftovers()
        assert staged_producers(store) == set()


def test_an_older_driver_is_fenced_after_a_crash_of_the_newer_one(path):
    with eoslog.open(path) as store:
        older = store.begin_run(APP)
    late = stage_job(path, older, JOB)

    def newer() -> None:
        store = eoslog.open(path)
        store.begin_run(APP)
        die()

    assert dies_in_child(newer)
    with eoslog.open(path) as store:
        with pytest.raises(StagedRunFencedError):
            store.commit_staged(APP, 1, late)
        assert visible_numbers(store) == expected_numbers(BEFORE)


# At any moment.


def drive_until_killed(path: Path, seed: int, fork: Fork) -> None:
    """A driver that runs one version after the other; each has 60 records of its own."""
    noise = random.Random(seed)
    store = eoslog.open(path, durability=noise.choice(["commit", "process"]))
    state = store.application(APP)
    version = state.version + 1
    while True:
        job = range(version * 60, version * 60 + 60)
        run_id = f"life-{seed}-{version}"
        messages = stage_job(path, run_id, job, tasks=noise.randrange(1, 4), durability="process")
        assert store.commit_staged(APP, version, messages, offsets=offsets_of(version)).committed
        fork.say(version)
        version += 1


def lives_and_deaths(path: Path, rounds: int, seed: int) -> None:
    noise = random.Random(seed)
    with eoslog.open(path) as store:
        store.create_topic("other")
    highest = 0
    # On a slow machine they may get little done: then there are more lives, and longer ones.
    for life in range(10 * rounds):
        if life >= rounds and highest > rounds // 2:
            break
        driver = Fork(partial(drive_until_killed, path, seed * 1000 + life))
        time.sleep(noise.uniform(0.02, 0.4) * max(1, life / rounds))
        assert driver.kill()
        highest = max([highest, *driver.said])
        with eoslog.open(path) as store:
            decided = store.application(APP).version
            assert highest <= decided <= highest + 1
            jobs = [range(version * 60, version * 60 + 60) for version in range(1, decided + 1)]
            assert visible_numbers(store) == expected_numbers(BEFORE, *jobs)
            check_offsets(store, list(range(decided + 1)))
            highest = decided
    assert highest > rounds // 2, "the driver came nowhere"


def test_drivers_killed_at_any_moment(path):
    lives_and_deaths(path, rounds=8, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_drivers_killed_at_any_moment_for_long(path, seed):
    lives_and_deaths(path, rounds=60, seed=seed)


def test_messages_of_a_dead_driver_can_be_committed_by_another_process(path):
    """A driver may write its messages down and die; they are all that the decision needs."""
    messages = stage_job(path, "run-1", JOB)
    text = json.dumps([asdict(message) for message in messages])

    def other() -> int:
        with eoslog.open(path) as store:
            found = [StagedMessage(**fields) for fields in json.loads(text)]
            return store.commit_staged(APP, 1, found).records

    assert in_child(other) == len(JOB)
    with eoslog.open(path) as store:
        assert visible_numbers(store) == expected_numbers(BEFORE, JOB)
