"""The decision about staged jobs: once, as a whole, or not at all."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    keep_leftovers,
    leave_undone,
    stage,
    stage_job,
    staged_files,
    staged_producers,
    trash,
    visible_numbers,
)

import eoslog
from eoslog.bindings.record_batch import BatchEncoder, crc32c, iter_batches
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    StagedCommitError,
    StagedJobIncompleteError,
    StagedRunFencedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
)
from eoslog.staging import application as staged_application
from eoslog.staging import job as staged_job
from eoslog.staging.adoption import HeldPartitions
from eoslog.staging.leftovers import Leftovers
from eoslog.staging.message import StagedMessage
from eoslog.staging.source import VersionSource
from eoslog.staging.writer import StagedWriter
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION

JOB = range(300)
NEXT_JOB = range(300, 420)


def path_of(message: StagedMessage, store_path: Path, number: int = 0) -> Path:
    attempt = store_path / "staging" / message.app_id / message.run_id / message.attempt
    return attempt / message.files[number].name


def nothing_happened(store: Any, messages: list[StagedMessage]) -> None:
    """Nothing is decided, nobody is held back, and the job can still be committed."""
    assert store.application(APP) is None
    assert visible_numbers(store) == expected_numbers()
    for number in range(PARTITIONS):
        partition = engine_of(store).partition(TOPIC, number)
        assert partition.log_end_offset == 0
        partition.append_columns([b"0000000"], [b"somebody else"])
        assert partition.visible_end == 1
    if messages:
        assert store.commit_staged(APP, 0, messages).committed


# One decision.


@pytest.fixture(params=["one after the other", "by threads"])
def filling(request, monkeypatch):
    """How a job fills its partitions."""
    if request.param == "by threads":
        monkeypatch.setattr("eoslog.staging.job.BYTES_FOR_THREADS", 1)
        monkeypatch.setattr("eoslog.staging.job.os.cpu_count", lambda: 2)
    return request.param


@pytest.mark.usefixtures("filling")
def test_a_job_enters_once_and_in_the_order_of_its_messages(store):
    messages = stage_job(store.path, "run-a", JOB, tasks=3)
    assert visible_numbers(store) == expected_numbers()
    keep_leftovers(store)
    result = store.commit_staged(APP, 0, messages, run_id="run-a")
    assert result.committed
    assert result.records == len(JOB)
    assert visible_numbers(store) == expected_numbers(JOB)
    counts = {number: len(rows) for number, rows in expected_numbers(JOB).items()}
    assert result.offsets == {
        TopicPartition(TOPIC, number): (0, count - 1) for number, count in counts.items() if count
    }
    state = store.application(APP)
    assert (state.version, state.run_id, state.state) == (0, "run-a", "complete")
    assert staged_files(store.path) == []
    parts_of(store).staged.clear_leftovers()
    assert trash(store.path) == []
    assert staged_producers(store) == set()


@pytest.mark.usefixtures("filling")
def test_offsets_go_on_behind_what_is_there(store):
    engine_of(store).partition(TOPIC, 1).append_columns([b"0000000"] * 7)
    result = store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    assert result.offsets[TopicPartition(TOPIC, 1)][0] == 7
    again = store.commit_staged(APP, 1, stage_job(store.path, "run-b", NEXT_JOB))
    for where, (_, last) in result.offsets.items():
        assert again.offsets[where][0] == last + 1


@pytest.mark.parametrize("version", [0, 3])
def test_a_version_that_is_in_is_a_no_op_whatever_it_holds(store, version):
    store.commit_staged(APP, 3, stage_job(store.path, "run-a", JOB))
    replay = stage_job(store.path, "run-b", range(1000, 1500), tasks=5)
    result = store.commit_staged(APP, version, replay, run_id="run-b")
    assert (result.committed, result.records, result.offsets) == (False, 0, {})
    assert visible_numbers(store) == expected_numbers(JOB)
    assert staged_files(store.path) == []
    assert store.application(APP).version == 3


def test_a_commit_repeated_with_the_same_messages_is_a_no_op(store):
    messages = stage_job(store.path, "run-a", JOB)
    assert store.commit_staged(APP, 0, messages).committed
    assert not store.commit_staged(APP, 0, messages).committed
    with pytest.raises(StagedCommitError, match=r"was committed before|missing"):
        store.commit_staged(APP, 1, messages)
    parts_of(store).staged.clear_leftovers()
    with pytest.raises(StagedCommitError, match="missing"):
        store.commit_staged(APP, 1, messages)
    assert visible_numbers(store) == expected_numbers(JOB)


def test_batches_are_no_larger_than_the_segments_of_their_topic(store):
    """Nobody said so in `max.message.bytes`: the store takes the smaller of the two."""
    store.create_topic("small", partitions=PARTITIONS, config={"segment.bytes": 2000})
    message = stage(store.path, "run-a", "0", JOB, topic="small", batch_bytes_max=100_000)
    assert store.commit_staged(APP, 0, [message]).records == len(JOB)
    assert visible_numbers(store, "small") == expected_numbers(JOB)


def test_a_job_without_rows_is_decided_too(store):
    assert store.commit_staged(APP, 0, [], run_id="run-a").committed
    empty = stage(store.path, "run-a", "0", range(0))
    assert store.commit_staged(APP, 1, [empty]).committed
    assert not store.commit_staged(APP, 1, stage_job(store.path, "run-a", JOB)).committed
    assert store.commit_staged(APP, 2, []).committed
    state = store.application(APP)
    assert (state.version, state.run_id) == (2, "run-a")


def test_applications_do_not_know_each_other(store):
    texts = [APP, "änother/app", "..", "x" * 600]
    for number, app_id in enumerate(texts):
        job = range(number * 50, number * 50 + 50)
        messages = stage_job(store.path, "run", job, app_id=app_id)
        assert store.commit_staged(app_id, 0, messages).committed
    assert visible_numbers(store) == expected_numbers(range(200))
    assert [store.application(app_id).app_id for app_id in texts] == texts
    assert store.application("unheard of") is None


def test_what_is_decided_is_remembered_by_the_next_opening(tmp_path, store):
    store.commit_staged(APP, 5, stage_job(store.path, "run-a", JOB))
    store.close()
    with eoslog.open(store.path) as opened:
        assert opened.application(APP).version == 5
        assert not opened.commit_staged(APP, 5, stage_job(opened.path, "run-b", JOB)).committed
        assert visible_numbers(opened) == expected_numbers(JOB)


@pytest.mark.parametrize("durability", ["commit", "always", "process"])
def test_files_that_their_writer_did_not_sync_are_synced_before_the_decision(
    tmp_path, monkeypatch, durability
):
    events: list[str] = []
    fsync, append = os.fsync, CompactedLog.append

    def noting_fsync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().suffix)
        fsync(descriptor)

    def noting_append(log: CompactedLog, record_type: int, *rest: Any, **options: Any) -> None:
        events.append("decision" if record_type == APPLICATION else "other")
        append(log, record_type, *rest, **options)

    with eoslog.open(tmp_path / "store", create=True, durability=durability) as opened:
        opened.create_topic(TOPIC, partitions=PARTITIONS)
        messages = stage_job(opened.path, "run", JOB, durability="process")
        monkeypatch.setattr(os, "fsync", noting_fsync)
        monkeypatch.setattr(CompactedLog, "append", noting_append)
        opened.commit_staged(APP, 0, messages)
        monkeypatch.undo()
        before = events[: events.index("decision")]
        expected = 0 if durability == "process" else sum(len(one.files) for one in messages)
        assert before.count(".batches") == expected
        assert visible_numbers(opened) == expected_numbers(JOB)


# Nothing before the decision.


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_to_whole_batches(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: iter_batches(data)[-1].position_bytes])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip(position: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 0x10
        path.write_bytes(data)

    return damage


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        cut_short,
        cut_to_whole_batches,
        lengthen,
        make_directory,
        *[flip(position) for position in (0, 7, 11, 15, 16, 17, 22, 44, 53, 60, 70, 100, -1)],
    ],
)
def test_a_staged_file_that_is_not_as_its_message_says_is_refused(store, damage):
    messages = stage_job(store.path, "run-a", JOB)
    path = path_of(messages[1], store.path)
    whole = path.read_bytes()
    damage(path)
    with pytest.raises(StagedCommitError, match=path.name) as caught:
        store.commit_staged(APP, 0, messages)
    assert caught.value.outcome == "not_appended"
    if path.is_dir():
        path.rmdir()
    path.write_bytes(whole)
    nothing_happened(store, messages)


def rewritten(
    message: StagedMessage, store_path: Path, data: bytes, **changes: Any
) -> StagedMessage:
    """The message with other bytes in its first file, and told so."""
    path_of(message, store_path).write_bytes(data)
    file = dataclasses.replace(message.files[0], bytes=len(data), crc=crc32c(data), **changes)
    return dataclasses.replace(message, files=(file, *message.files[1:]))


def encoded(count: int, **identity: int) -> bytes:
    return BatchEncoder().encode_columns([b"value"] * count, timestamp_ms=1, **identity)


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        (
            lambda pid: encoded(2, producer_id=pid + 1, producer_epoch=0, base_sequence=0),
            "producer",
        ),
        (lambda pid: encoded(2, producer_id=pid, producer_epoch=1, base_sequence=0), "producer"),
        (lambda pid: encoded(2, producer_id=pid, producer_epoch=0, base_sequence=1), "sequence 1"),
        (
            lambda pid: encoded(1, producer_id=pid, producer_epoch=0, base_sequence=0) * 2,
            "sequence 0, expected 1",
        ),
        (
            lambda pid: encoded(
                2, producer_id=pid, producer_epoch=0, base_sequence=0, base_offset=9
            ),
            "base offset 9",
        ),
        (
            lambda pid: encoded(3, producer_id=pid, producer_epoch=0, base_sequence=0),
            "3 records, expected 2",
        ),
    ],
)
def test_batches_that_are_not_the_files_own_are_refused(store, batches, reason):
    message = stage(store.path, "run-a", "0", JOB)
    data = batches(message.files[0].producer_id)
    wrong = rewritten(message, store.path, data, records=2)
    with pytest.raises(StagedCommitError, match=reason):
        store.commit_staged(APP, 0, [wrong])
    nothing_happened(store, [])


@pytest.mark.parametrize("attributes", [1, 0x10, 0x20, 0x40])
def test_compressed_transactional_and_control_batches_are_refused(store, attributes):
    message = stage(store.path, "run-a", "0", JOB)
    identity = {"producer_id": message.files[0].producer_id, "producer_epoch": 0}
    data = bytearray(encoded(2, base_sequence=0, **identity))
    data[22] = attributes
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    wrong = rewritten(message, store.path, bytes(data), records=2)
    with pytest.raises(StagedCommitError, match="attributes"):
        store.commit_staged(APP, 0, [wrong])
    nothing_happened(store, [])


def test_batches_larger_than_the_topic_takes_are_refused(store):
    store.create_topic("small", partitions=PARTITIONS, config={"max.message.bytes": 400})
    topics_file = store.path / "state" / "topics.json"
    hidden = topics_file.rename(topics_file.with_suffix(".hidden"))
    message = stage(store.path, "run-a", "0", JOB, topic="small")
    hidden.rename(topics_file)
    with pytest.raises(StagedCommitError, match="the topic takes 400"):
        store.commit_staged(APP, 0, [message])
    assert visible_numbers(store, "small") == expected_numbers()


def test_messages_that_do_not_belong_together_are_refused(store):
    messages = stage_job(store.path, "run-a", JOB)
    other_run = stage_job(store.path, "run-b", JOB)
    other_app = stage_job(store.path, "run-a", JOB, app_id="other")
    same_ids = dataclasses.replace(messages[1], files=messages[0].files)
    for wrong, options, reason in [
        ([messages[0], messages[0]], {}, "came twice"),
        ([messages[0], same_ids], {}, "came twice"),
        ([messages[0], other_run[1]], {}, "one run is committed at a time"),
        (messages, {"run_id": "run-b"}, "one run is committed at a time"),
        ([messages[0], other_app[1]], {}, "of application 'other'"),
    ]:
        with pytest.raises(StagedCommitError, match=reason):
            store.commit_staged(APP, 0, wrong, **options)
    nothing_happened(store, messages)


def test_topics_and_partitions_that_do_not_exist_are_refused(store):
    unknown = stage(store.path, "run-a", "0", JOB, topic="unknown")
    with StagedWriter(store.path, APP, "run-a", "1", partitions={"late": 9}) as writer:
        writer.append("late", 8, [b"value"])
    store.create_topic("late", partitions=8)
    for message, where in ((unknown, "unknown-"), (writer.message, "late-8")):
        with pytest.raises(StagedCommitError, match=f"no partition {where}"):
            store.commit_staged(APP, 0, [message])
    nothing_happened(store, [])


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("step", ["producer", "hold_readers", "visible_end", "find"])
def test_a_topic_that_is_deleted_while_its_job_is_checked_is_named(
    store, monkeypatch, step, made_again
):
    """By another thread: nothing is decided, and nobody is held back."""
    store.create_topic("lasting", partitions=PARTITIONS)
    messages = [
        stage(store.path, "run-a", "0", JOB, topic="lasting"),
        stage(store.path, "run-a", "1", JOB),
    ]

    def deleted_first(real):
        def call(*arguments):
            if arguments[0] in partitions:
                monkeypatch.undo()
                store.delete_topic(TOPIC)
                if made_again:
                    store.create_topic(TOPIC, partitions=PARTITIONS)
            return real(*arguments)

        return call

    partitions = [engine_of(store).partition(TOPIC, number) for number in range(PARTITIONS)]
    if step == "visible_end":
        real = UnifiedLog.visible_end
        monkeypatch.setattr(UnifiedLog, step, property(deleted_first(real.fget)))
    elif step == "find":
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        find = deleted_first(lambda where, held: real_find(held, where))
        real_find = HeldPartitions.find
        monkeypatch.setattr(HeldPartitions, step, lambda held, where: find(where, held))
    else:
        monkeypatch.setattr(UnifiedLog, step, deleted_first(getattr(UnifiedLog, step)))
    with pytest.raises(StagedCommitError, match=f"topic '{TOPIC}' was deleted"):
        store.commit_staged(APP, 0, messages)
    assert store.application(APP) is None
    with store.producer() as producer:
        for number in range(PARTITIONS):
            producer.append("lasting", number, [b"0"])
    assert len(visible_numbers(store, "lasting")) == PARTITIONS
    assert store.verify() == []


@pytest.mark.parametrize("sent", ["as it is", "as JSON"])
def test_what_was_staged_for_a_topic_does_not_get_into_a_new_one_of_its_name(store, sent):
    store.create_topic("lasting", partitions=PARTITIONS)
    old = [
        stage(store.path, "run-a", "0", JOB, topic="lasting"),
        stage(store.path, "run-a", "1", JOB),
    ]
    if sent == "as JSON":
        texts = [json.dumps(dataclasses.asdict(message)) for message in old]
        old = [StagedMessage(**json.loads(text)) for text in texts]
    store.delete_topic(TOPIC)
    store.create_topic(TOPIC, partitions=PARTITIONS)
    with pytest.raises(StagedCommitError, match=f"topic '{TOPIC}' that was deleted"):
        store.commit_staged(APP, 0, old)
    assert store.application(APP) is None
    assert visible_numbers(store) == visible_numbers(store, "lasting") == expected_numbers()
    nothing_happened(store, stage_job(store.path, "run-b", JOB))


def test_a_message_that_names_no_topic_id_is_checked_by_the_rest(store):
    message = stage(store.path, "run-a", "0", JOB)
    assert {file.topic_id for file in message.files} == {store.topics()[TOPIC].topic_id}
    files = [{**dataclasses.asdict(file)} for file in message.files]
    for file in files:
        del file["topic_id"]
    earlier = StagedMessage(APP, "run-a", "0", tuple(files), synced=True)
    assert {file.topic_id for file in earlier.files} == {""}
    assert store.commit_staged(APP, 0, [earlier]).committed
    assert visible_numbers(store) == expected_numbers(JOB)


def test_a_writer_that_cannot_read_the_topics_file_knows_no_topic_id(store):
    topics = store.path / "state" / "topics.json"
    kept = topics.rename(topics.with_name("kept"))
    message = stage(store.path, "run-a", "0", JOB)
    kept.rename(topics)
    assert {file.topic_id for file in message.files} == {""}
    assert store.commit_staged(APP, 0, [message]).committed


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((APP, -1, []), ValueError),
        ((APP, 1 << 63, []), ValueError),
        ((APP, True, []), TypeError),
        ((APP, "1", []), TypeError),
        ((APP, 0, [{"app_id": APP}]), TypeError),
        ((APP, 0, [], ""), ValueError),
        ((APP, 0, [], 5), TypeError),
        (("", 0, []), ValueError),
        ((None, 0, []), TypeError),
    ],
)
def test_wrong_arguments_are_refused(store, arguments, error):
    with pytest.raises(error):
        store.commit_staged(*arguments)
    assert store.application(APP) is None


@pytest.mark.parametrize("what", ["a link", "a link to itself", "a pipe", "a directory", "a way"])
def test_what_is_no_regular_file_is_refused(store, what):
    messages = stage_job(store.path, "run-a", JOB)
    path = path_of(messages[1], store.path)
    kept = path.rename(store.path.with_name("kept"))
    if what == "a link":
        path.symlink_to(kept)
    elif what == "a link to itself":
        path.symlink_to(path.name)
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a directory":
        path.mkdir()
    else:
        directory = path.parent.rename(store.path.with_name("attempt"))
        path.parent.write_bytes(b"")
    with pytest.raises(StagedCommitError, match="no regular file") as caught:
        store.commit_staged(APP, 0, messages)
    assert str(path) in str(caught.value)
    if what == "a way":
        path.parent.unlink()
        directory.rename(path.parent)
    elif what == "a directory":
        path.rmdir()
    else:
        path.unlink()
    kept.rename(path)
    nothing_happened(store, messages)


def test_a_file_whose_records_are_in_is_not_taken_a_second_time(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)
    copies = {
        path: path.read_bytes()
        for message in messages
        for path in [path_of(message, store.path, number) for number in range(len(message.files))]
    }
    # As if the process had died between the complete record and the removal of the files.
    monkeypatch.setattr(Leftovers, "leave", lambda *_: None)
    store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    assert copies.keys() == {path for path in copies if path.exists()}
    with pytest.raises(StagedCommitError, match="was committed before"):
        store.commit_staged(APP, 1, messages)
    assert visible_numbers(store) == expected_numbers(JOB)


# Runs.


def test_a_registered_run_fences_the_ones_before_it(store):
    older = store.begin_run(APP)
    assert store.commit_staged(APP, 0, stage_job(store.path, older, range(50))).committed
    newer = store.begin_run(APP)
    late = stage_job(store.path, older, range(50, 90))
    with pytest.raises(StagedRunFencedError, match=newer):
        store.commit_staged(APP, 1, late)
    assert not store.commit_staged(APP, 0, late).committed, "J2 comes first"
    for version in (1, 2):
        numbers = range(100 * version, 100 * version + 50)
        assert store.commit_staged(APP, version, stage_job(store.path, newer, numbers)).committed
    assert visible_numbers(store) == expected_numbers(range(50), range(100, 150), range(200, 250))
    assert store.application(APP).generation == 2


def test_runs_of_the_callers_own_naming_fence_each_other_by_their_commits(store):
    store.commit_staged(APP, 0, [], run_id="first")
    store.commit_staged(APP, 1, [], run_id="second")
    with pytest.raises(StagedRunFencedError):
        store.commit_staged(APP, 2, [], run_id="first")
    registered = store.begin_run(APP)
    with pytest.raises(StagedRunFencedError):
        store.commit_staged(APP, 2, [], run_id="second")
    assert store.commit_staged(APP, 2, [], run_id="third").committed
    with pytest.raises(StagedRunFencedError):
        store.commit_staged(APP, 3, [], run_id=registered)


def test_the_names_of_overtaken_runs_are_remembered_up_to_a_number(store, monkeypatch):
    monkeypatch.setattr(staged_application, "OVERTAKEN_RUNS_MAX", 3)
    for version in range(6):
        store.commit_staged(APP, version, [], run_id=f"own-{version}")
    for name in ("own-2", "own-3", "own-4"):
        with pytest.raises(StagedRunFencedError):
            store.commit_staged(APP, 9, [], run_id=name)
    assert store.commit_staged(APP, 5, [], run_id="own-0").committed is False


def test_fencing_survives_a_reopening(store):
    older = store.begin_run(APP)
    newer = store.begin_run(APP)
    store.close()
    with eoslog.open(store.path) as opened:
        with pytest.raises(StagedRunFencedError):
            opened.commit_staged(APP, 0, [], run_id=older)
        assert opened.commit_staged(APP, 0, [], run_id=newer).committed


# Readers see all of a job or nothing.


def test_readers_see_nothing_of_a_job_until_all_of_it_is_in(store, monkeypatch):
    seen: list[dict[int, list[int]]] = []
    adopt = UnifiedLog.adopt

    def looking(partition: UnifiedLog, *arguments: Any) -> tuple[int, int]:
        result = adopt(partition, *arguments)
        assert partition.log_end_offset > 0
        other = engine_of(store).partition(TOPIC, 0)
        other.append_columns([b"0000000"])
        seen.append(visible_numbers(store))
        return result

    messages = stage_job(store.path, "run-a", JOB)
    monkeypatch.setattr(UnifiedLog, "adopt", looking)
    store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    assert len(seen) == sum(len(message.files) for message in messages) > 3
    assert all(one == expected_numbers() for one in seen)
    whole = visible_numbers(store)
    whole[0] = whole[0][:]
    for _ in seen:
        whole[0].remove(0)
    assert whole == expected_numbers(JOB)


def test_producer_ids_of_a_job_under_way_do_not_expire(store, monkeypatch):
    exempt: list[frozenset[int]] = []
    adopt = UnifiedLog.adopt

    def looking(partition: UnifiedLog, *arguments: Any) -> tuple[int, int]:
        exempt.append(parts_of(store).staged.producer_ids())
        return adopt(partition, *arguments)

    messages = stage_job(store.path, "run-a", JOB)
    monkeypatch.setattr(UnifiedLog, "adopt", looking)
    store.commit_staged(APP, 0, messages)
    expected = {file.producer_id for message in messages for file in message.files}
    assert all(one == expected for one in exempt)
    parts_of(store).staged.clear_leftovers()
    assert parts_of(store).staged.producer_ids() == frozenset()


# A disk that is full, or fails.


def failing(error: BaseException, after: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function, until it was called so many times; from then on it raises."""
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error
        return original(*arguments, **options)

    return call


FULL = StoreFullError("no space")


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (CompactedLog, "append", 0),
        (UnifiedLog, "make_durable", 0),
        (UnifiedLog, "make_durable", PARTITIONS - 1),
        (staged_job, "write_atomically", 0),
    ],
)
def test_a_full_disk_before_the_decision_decides_nothing(store, monkeypatch, owner, name, after):
    messages = stage_job(store.path, "run-a", JOB)
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    monkeypatch.setattr(owner, name, failing(FULL, after, getattr(owner, name)))
    with pytest.raises(StoreFullError):
        store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    nothing_happened(store, messages)


def test_a_job_for_which_there_is_no_room_is_not_decided(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)
    job_bytes = sum(message.bytes for message in messages)

    class NearlyFull:
        f_frsize = 1
        f_bavail = job_bytes - 1

    monkeypatch.setattr("eoslog.staging.adoption.os.statvfs", lambda _: NearlyFull)
    with pytest.raises(StoreFullError, match=f"needs {job_bytes} bytes"):
        store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    nothing_happened(store, messages)


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("way", ["commit again", "next version", "sweep", "reopen", "threads"])
def test_a_disk_full_in_adoption_leaves_a_job_that_is_completed_later(
    store, monkeypatch, after, way
):
    if way == "threads":
        monkeypatch.setattr("eoslog.staging.job.BYTES_FOR_THREADS", 1)
        monkeypatch.setattr("eoslog.staging.job.os.cpu_count", lambda: 2)
    store.create_topic("other", partitions=PARTITIONS)
    messages = stage_job(store.path, "run-a", JOB)
    files = sum(len(message.files) for message in messages)
    after = min(after, files - 1)
    monkeypatch.setattr(UnifiedLog, "adopt", failing(FULL, after, UnifiedLog.adopt))
    with pytest.raises(StagedJobIncompleteError, match="no space") as caught:
        store.commit_staged(APP, 0, messages)
    assert caught.value.outcome == "unknown"
    assert visible_numbers(store) == expected_numbers()
    assert store.application(APP).state == "prepared"
    with pytest.raises(StagedCommitError, match="an earlier job holds back"):
        store.commit_staged("b", 0, stage_job(store.path, "r", NEXT_JOB, app_id="b"))
    with pytest.raises(StagedCommitError, match="version 1 of application 'app' is not decided"):
        store.commit_staged(APP, 1, stage_job(store.path, "run-b", NEXT_JOB))
    parts_of(store).staged.sweep()
    store.sweep_run(APP, "run-b")
    assert not [path for path in staged_files(store.path) if path.startswith("app/run-b")]
    assert store.sweep_run(APP, "run-a") == 0
    monkeypatch.undo()
    elsewhere = stage_job(store.path, "r", NEXT_JOB, app_id="c", topic="other")
    assert store.commit_staged("c", 0, elsewhere).committed
    assert visible_numbers(store) == expected_numbers()
    if way in ("commit again", "threads"):
        assert not store.commit_staged(APP, 0, messages).committed
    elif way == "next version":
        later = stage_job(store.path, "run-c", range(0))
        assert store.commit_staged(APP, 1, later).committed
    elif way == "sweep":
        parts_of(store).staged.sweep()
    else:
        store.close()
        store = eoslog.open(store.path)
    try:
        assert visible_numbers(store) == expected_numbers(JOB)
        assert store.application(APP).state == "complete"
        parts_of(store).staged.clear_leftovers()
        assert staged_producers(store) == set()
        assert not [path for path in staged_files(store.path) if path.startswith("app/run-a")]
    finally:
        store.close()


@pytest.mark.parametrize("source", [None, VersionSource("stream", "driver")])
def test_behind_a_version_that_cannot_be_completed_nothing_is_decided(store, monkeypatch, source):
    """Whoever is told so may not take it for a decision, and commits the same messages again."""
    first, second = stage_job(store.path, "run-a", JOB), stage_job(store.path, "run-b", NEXT_JOB)

    def commit(version: int, messages: list[StagedMessage]) -> bool:
        run_id = messages[0].run_id
        return store.commit_staged(APP, version, messages, run_id, source=source).committed

    monkeypatch.setattr(UnifiedLog, "adopt", failing(FULL, 0, UnifiedLog.adopt))
    for _ in range(2):
        with pytest.raises(StagedJobIncompleteError, match="version 0"):
            commit(0, first)
        with pytest.raises(
            StagedCommitError, match="version 1 of application 'app' is not"
        ) as told:
            commit(1, second)
        assert told.value.outcome == "not_appended"
        assert store.application(APP).version == 0
    monkeypatch.undo()
    assert commit(1, second)
    assert not commit(1, second)
    assert visible_numbers(store) == expected_numbers(JOB, NEXT_JOB)


def test_a_disk_full_at_the_complete_record_shows_the_job_and_adds_it_once(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)
    leave_undone(
        store, CompactedLog, "append", messages, refuse=failing(FULL, 1, CompactedLog.append)
    )
    assert visible_numbers(store) == expected_numbers(JOB)
    assert store.application(APP).state == "prepared"
    assert not store.commit_staged(APP, 0, messages).committed
    assert visible_numbers(store) == expected_numbers(JOB)
    assert store.application(APP).state == "complete"


def test_a_decision_that_may_be_on_disk_is_known_by_the_next_opening(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)
    append = CompactedLog.append

    def append_and_fail(*arguments: Any, **options: Any) -> None:
        append(*arguments, **options)
        raise StoreFailedError("the sync failed")

    monkeypatch.setattr(CompactedLog, "append", append_and_fail)
    with pytest.raises(StoreFailedError):
        store.commit_staged(APP, 0, messages)
    assert visible_numbers(store) == expected_numbers()
    store.close()
    monkeypatch.undo()
    with eoslog.open(store.path) as opened:
        assert visible_numbers(opened) == expected_numbers(JOB)
        assert opened.application(APP).state == "complete"


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupt_in_the_decision_is_settled_by_the_next_commit(store, monkeypatch, written):
    messages = stage_job(store.path, "run-a", JOB)
    append = CompactedLog.append

    def append_interrupted(*arguments: Any, **options: Any) -> None:
        if written:
            append(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(CompactedLog, "append", append_interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    assert visible_numbers(store) == expected_numbers()
    assert store.commit_staged(APP, 0, messages).committed
    assert visible_numbers(store) == expected_numbers(JOB)


def test_the_files_of_a_decision_that_may_be_on_disk_are_kept(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)

    def fail(*_: Any, **__: Any) -> None:
        raise StoreFailedError("the sync failed")

    monkeypatch.setattr(CompactedLog, "append", fail)
    with pytest.raises(StoreFailedError):
        store.commit_staged(APP, 0, messages)
    with pytest.raises(StoreFailedError):
        store.sweep_run(APP, "run-a")
    assert len(staged_files(store.path)) == sum(len(message.files) for message in messages)
    monkeypatch.undo()
    assert store.sweep_run(APP, "run-a") == sum(len(message.files) for message in messages)
    assert store.application(APP).version == -1
    assert visible_numbers(store) == expected_numbers()


def test_an_interrupt_in_adoption_leaves_the_job_to_be_completed(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)
    monkeypatch.setattr(UnifiedLog, "adopt", failing(KeyboardInterrupt(), 2, UnifiedLog.adopt))
    with pytest.raises(KeyboardInterrupt):
        store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    assert visible_numbers(store) == expected_numbers()
    parts_of(store).staged.sweep()
    assert visible_numbers(store) == expected_numbers(JOB)


def flip_in_the_middle(whole):
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


DAMAGES = {
    "a bit": (flip_in_the_middle, "damaged.*checksum"),
    "cut": (lambda whole: whole[:-10], "bytes, expected"),
    "empty": (lambda whole: b"", "0 bytes, expected"),
    "zeros": (lambda whole: bytes(len(whole)), "damaged.*at byte 0"),
    "gone": (None, "is gone"),
}


@pytest.mark.parametrize(("damage", "told"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_file_damaged_after_the_decision_is_told_by_verify(
    store, monkeypatch, caplog, damage, told
):
    """Readers are held back for good, and nobody else says which file it is."""
    messages = stage_job(store.path, "run-a", JOB)
    leave_undone(store, UnifiedLog, "adopt", messages, refuse=failing(FULL, 2, UnifiedLog.adopt))
    assert store.verify() == []
    adopted = path_of(messages[0], store.path, 0)
    adopted.unlink()  # Nobody asks for it any more.
    path = path_of(messages[1], store.path, -1)
    whole = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(whole))
    for _ in range(2):
        (found,) = store.verify()
        assert found["path"] == str(path)
        assert re.search(told, found["reason"])
        store.close()
        store = eoslog.open(store.path)
    with store:
        assert str(path) in caplog.text
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
        parts_of(store).staged.sweep()
        assert store.verify() == []
        assert visible_numbers(store) == expected_numbers(JOB)


def test_a_file_of_another_producer_in_the_place_of_a_decided_one_is_told(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)
    leave_undone(store, UnifiedLog, "adopt", messages, refuse=failing(FULL, 0, UnifiedLog.adopt))
    taken, other = (path_of(message, store.path) for message in messages[:2])
    right = taken.read_bytes()
    taken.write_bytes(other.read_bytes())
    (found,) = store.verify()
    assert found["path"] == str(taken)
    taken.write_bytes(right)
    parts_of(store).staged.sweep()
    assert visible_numbers(store) == expected_numbers(JOB)


def test_a_file_damaged_after_the_decision_keeps_the_job_invisible(store, monkeypatch, caplog):
    messages = stage_job(store.path, "run-a", JOB)
    leave_undone(store, UnifiedLog, "adopt", messages, refuse=failing(FULL, 2, UnifiedLog.adopt))
    path = path_of(messages[1], store.path, -1)  # Of the last partition to be filled.
    whole = path.read_bytes()
    path.unlink()
    store.close()
    with eoslog.open(store.path) as opened:
        assert visible_numbers(opened) == expected_numbers()
        assert opened.application(APP).state == "prepared"
        with pytest.raises(StagedJobIncompleteError, match="missing"):
            opened.commit_staged(APP, 0, messages)
    assert "is decided, but not completely in the log yet" in caplog.text
    path.write_bytes(whole)
    with eoslog.open(store.path) as opened:
        assert visible_numbers(opened) == expected_numbers(JOB)


# Large jobs.


def test_a_long_list_of_files_goes_to_a_file_of_its_own(store, monkeypatch):
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    messages = stage_job(store.path, "run-a", JOB, tasks=10)
    leave_undone(store, UnifiedLog, "adopt", messages, refuse=failing(FULL, 4, UnifiedLog.adopt))
    (manifest,) = (store.path / "staging" / APP / "run-a").glob("manifest-*.json")
    whole = manifest.read_bytes()
    assert [name for name, _ in json.loads(whole)] == [one.attempt for one in messages]
    manifest.write_bytes(whole.replace(b"0", b"1", 1))
    store.close()
    with eoslog.open(store.path) as opened:
        assert visible_numbers(opened) == expected_numbers(), "held, though the list is lost"
        with pytest.raises(StagedJobIncompleteError, match="damaged"):
            opened.commit_staged(APP, 0, messages)
        manifest.unlink()
        with pytest.raises(StagedJobIncompleteError, match="No such file"):
            opened.commit_staged(APP, 0, messages)
        os.mkfifo(manifest)
        with pytest.raises(StagedJobIncompleteError, match="not a regular file"):
            opened.commit_staged(APP, 0, messages)  # It does not wait for somebody to write.
        manifest.unlink()
        manifest.symlink_to("/dev/zero")
        with pytest.raises(StagedJobIncompleteError, match="not a regular file"):
            opened.commit_staged(APP, 0, messages)
        manifest.unlink()
        manifest.write_bytes(whole)
        assert not opened.commit_staged(APP, 0, messages).committed
        assert visible_numbers(opened) == expected_numbers(JOB)


def test_a_job_of_thousands_of_files_fits(store):
    messages = [
        stage(store.path, "run-a", f"{task:06d}", range(task, task + 1), durability="process")
        for task in range(3000)
    ]
    result = store.commit_staged(APP, 0, messages)
    assert result.records == 3000
    assert visible_numbers(store) == expected_numbers(range(3000))
    assert staged_files(store.path) == []


def test_more_partitions_than_a_record_can_name_are_refused(store, monkeypatch):
    monkeypatch.setattr(staged_job, "BOUNDS_BYTES_MAX", 10)
    messages = stage_job(store.path, "run-a", JOB)
    with pytest.raises(StagedCommitError, match="too many for one job"):
        store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    nothing_happened(store, messages)


# Topics that go away.


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("way", ["sweep", "reopen"])
def test_a_topic_deleted_after_the_decision_is_left_out(store, monkeypatch, made_again, way):
    store.create_topic("second", partitions=PARTITIONS)
    with StagedWriter(
        store.path, APP, "run-a", "0", partitions={TOPIC: PARTITIONS, "second": PARTITIONS}
    ) as writer:
        for topic in (TOPIC, "second"):
            for number in range(PARTITIONS):
                writer.append(topic, number, [b"%07d" % number])
    leave_undone(
        store, UnifiedLog, "adopt", [writer.message], refuse=failing(FULL, 2, UnifiedLog.adopt)
    )
    store.delete_topic(TOPIC)
    if made_again:
        store.create_topic(TOPIC, partitions=PARTITIONS)
    if way == "sweep":
        parts_of(store).staged.sweep()
    else:
        store.close()
        store = eoslog.open(store.path)
    try:
        assert store.application(APP).state == "complete"
        assert visible_numbers(store, "second") == {0: [0], 1: [1], 2: [2]}
        if made_again:
            assert visible_numbers(store) == expected_numbers()
    finally:
        store.close()


# Where it waits.


def test_a_staging_path_that_is_no_directory_is_passed_over(tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        (store.path / "staging").write_bytes(b"")
        parts_of(store).staged.roll_forward()
        parts_of(store).staged.sweep()
        store.create_topic(TOPIC, partitions=PARTITIONS)
        with pytest.raises(EoslogError):
            stage_job(store.path, "run-a", JOB)


# Threads.


def test_threads_commit_one_after_the_other(store):
    jobs = [range(number * 40, number * 40 + 40) for number in range(8)]
    staged = [
        stage_job(store.path, "run", job, app_id=f"app-{number}") for number, job in enumerate(jobs)
    ]
    errors: list[EoslogError] = []

    def commit(number: int) -> None:
        try:
            assert store.commit_staged(f"app-{number}", 0, staged[number]).committed
        except EoslogError as error:
            errors.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    everything = {number: sorted(rows) for number, rows in visible_numbers(store).items()}
    assert everything == expected_numbers(range(320))


def test_os_errors_of_staged_files_are_named(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("eoslog.staging.adoption.mmap.mmap", refuse)
    with pytest.raises(StoreError, match="Too many open files"):
        store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    nothing_happened(store, messages)


def test_files_that_cannot_be_removed_after_the_job_are_no_error(store, monkeypatch):
    """It is complete: who heard of an error, with nothing appended, would write it again."""

    def failed(*_: object) -> None:
        raise StoreError("too many open files")

    run_id = store.begin_run(APP)
    messages = stage_job(store.path, run_id, JOB)
    monkeypatch.setattr(Leftovers, "put_away", failed)
    assert store.commit_staged(APP, 0, messages, run_id).committed
    monkeypatch.undo()
    parts_of(store).staged.clear_leftovers()
    assert visible_numbers(store) == expected_numbers(JOB)
    # The ids keep out a second copy as long as there are files.
    assert staged_files(store.path)
    assert staged_producers(store)
    assert not store.commit_staged(APP, 0, messages, run_id).committed
    assert visible_numbers(store) == expected_numbers(JOB)
