"""After a clean close nothing is recovered: a reader says itself that part of a log is missing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.crew import started
from harness.fork import in_child
from store_copies import copy_store
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import CorruptRecordError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET
from eoslog.storage import topic_registry
from eoslog.storage.offset_checkpoints import last_offsets
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import StoreFiles
from eoslog.store.store import engine_of, parts_of

pytestmark = pytest.mark.crash

WHERE = TopicPartition("rows", 0)
RECORDS = 60


def cut_between_batches(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: list(iter_batches(data))[-2].position_bytes])


def cut_in_a_batch(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: list(iter_batches(data))[-2].position_bytes + 70])


def take_out(path: Path, index: int) -> None:
    data = path.read_bytes()
    batches = list(iter_batches(data))
    start, end = batches[index].position_bytes, batches[index + 1].position_bytes
    path.write_bytes(data[:start] + data[end:])


def take_out_the_first_batch(path: Path) -> None:
    take_out(path, 0)


def take_out_a_batch_from_the_middle(path: Path) -> None:
    take_out(path, 3)


def fill(path: Path) -> list[Path]:
    """Four segments, closed cleanly."""
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows", config={"segment.bytes": 2000})
        for index in range(RECORDS):
            store.producer().append("rows", 0, [b"%03d" % index + b"x" * 60])
    segments = sorted((path / str(WHERE)).glob("*.log"))
    assert len(segments) == 4
    return segments


@pytest.mark.parametrize("closed", [True, False])
def test_a_flipped_log_start_hides_nothing(tmp_path: Path, closed: bool) -> None:
    path, killed = tmp_path / "store", tmp_path / "killed"
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows")
        store.producer().append("rows", 0, [b"%03d" % index for index in range(RECORDS)])
        store.flush()
        parts_of(store).files.checkpoints.write(
            {WHERE: last_offsets(engine_of(store).partition("rows", 0))}
        )
        copy_store(path, killed)
    found = path if closed else killed
    checkpoint = found / LOG_START_OFFSET
    content = checkpoint.read_bytes()
    assert b"rows 0 0\n" in content
    checkpoint.write_bytes(content.replace(b"rows 0 0\n", b"rows 0 8\n"))
    with eoslog.open(found) as store:
        consumer = store.consumer()
        consumer.assign([WHERE])
        assert [record.offset for record in consumer.poll(0)] == list(range(RECORDS))
        # After a clean close it was put away at once.
        told = [problem["path"] for problem in store.verify()]
        assert told == ([] if closed else [str(checkpoint)])
    with eoslog.open(found) as store:
        assert store.verify() == []


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        *itertools.product([Path.unlink, cut_between_batches, cut_in_a_batch], [1, 2]),
        *itertools.product([take_out_the_first_batch, take_out_a_batch_from_the_middle], range(3)),
    ],
)
def test_nobody_steps_over_it(tmp_path, damage: Callable[[Path], object], number: int):
    path = tmp_path / "store"
    segments = fill(path)
    damage(segments[number])
    with eoslog.open(path) as store:
        consumer = store.consumer(auto_offset_reset="none")
        consumer.assign([WHERE])
        consumer.seek(WHERE, 0)
        offsets: list[int] = []
        with pytest.raises(CorruptRecordError) as caught:
            while True:
                found = [record.offset for record in consumer.poll(0)]
                assert found, offsets
                offsets += found
        assert offsets == list(range(len(offsets)))
        assert "rows-0" in str(caught.value)
        behind = int(segments[number + 1].stem)
        assert len(offsets) < behind
        consumer.seek(WHERE, behind)
        assert [record.offset for record in consumer.poll(0)] == list(range(behind, RECORDS))
        assert store.verify() != []


def test_a_beginning_that_is_gone_is_told_until_more_of_the_log_goes(tmp_path, caplog):
    """The log starts further up, as after a retention; but nothing here deleted it."""
    path = tmp_path / "store"
    segments = fill(path)
    segments[0].unlink()
    first = int(segments[1].stem)
    for _ in range(2):
        caplog.clear()
        with eoslog.open(path) as store:
            (found,) = store.verify()
            told = f"as its checkpoint has it, and its oldest segment begins at {first}: "
            assert told in str(found["reason"])
            assert found["path"] == str(path / str(WHERE))
        assert "lost by the disk" in caplog.text
    with eoslog.open(path) as store:
        partition = engine_of(store).partition(*WHERE)
        assert partition.delete_segments(int(segments[2].stem)) == 1
        assert store.verify() == []
    caplog.clear()
    with eoslog.open(path) as store:
        assert store.verify() == []
        assert store.partition(*WHERE).log_start_offset == int(segments[2].stem)
    assert caplog.text == ""


def test_the_beginning_of_an_internal_log_is_told_too(tmp_path, monkeypatch):
    small = dict.fromkeys(("segment.bytes", "max.message.bytes"), 1 << 14)
    monkeypatch.setattr(topic_registry, "INTERNAL_TOPIC_CONFIG", small)
    monkeypatch.setattr(StoreFiles, "compact", lambda *_: 0)
    path = tmp_path / "store"
    fill(path)
    with eoslog.open(path, config=QUIET) as store:
        with store.consumer(group="g") as consumer:
            for number in range(400):
                consumer.commit({WHERE: number % 60})
        log = next(
            one for one in path.glob("__consumer_offsets-*") if len([*one.glob("*.log")]) > 1
        )
    min(log.glob("*.log")).unlink()
    with eoslog.open(path) as store:
        assert [one["path"] for one in store.verify()] == [str(log)]


@pytest.mark.parametrize("gone_count", [1, 2])
def test_who_joins_is_told_that_the_beginning_is_gone(tmp_path, gone_count: int):
    """The page says where the log begins, and the files of its oldest segments are not there."""
    path = tmp_path / "store"
    segments = fill(path)
    first = int(segments[gone_count].stem)
    told = f"the log begins at offset 0, and its oldest segment begins at {first}: "

    def join() -> None:
        with eoslog.open(path) as store, store.consumer() as consumer:
            (found,) = store.verify()
            assert str(found["reason"]).startswith(told)
            assert found["path"] == str(path / str(WHERE))
            consumer.assign([WHERE])
            partition = engine_of(store).partition(*WHERE)
            reads = (
                lambda _: consumer.poll(0),
                partition.read,
                lambda offset: partition.fetch_records(offset, 9, 1 << 20),
                lambda offset: partition.fetch_columns(offset, 1 << 20),
            )
            for offset in (0, first - 1):
                consumer.seek(WHERE, offset)
                for read in reads:
                    with pytest.raises(CorruptRecordError, match=told):
                        read(offset)
            consumer.seek(WHERE, first)
            assert [one.offset for one in consumer.poll(0)] == list(range(first, RECORDS))

    with eoslog.open(path) as store:
        assert store.partition(*WHERE).log_start_offset == 0
        for segment in segments[:gone_count]:
            segment.unlink()
        in_child(join)
        assert store.verify() != []
    with eoslog.open(path) as store:
        (found,) = store.verify()
        assert "begins at offset 0, as its checkpoint has it" in str(found["reason"])


def test_who_joins_is_told_until_retention_deletes_what_is_gone(tmp_path):
    path = tmp_path / "store"
    segments = fill(path)
    first, second = (int(segments[number].stem) for number in (1, 2))

    def join(problems: int, start: int) -> None:
        with eoslog.open(path) as store:
            assert len(store.verify()) == problems
            assert store.partition(*WHERE).log_start_offset == start

    with eoslog.open(path) as store:
        partition = engine_of(store).partition(*WHERE)
        segments[0].unlink()
        in_child(lambda: join(1, 0))
        assert partition.delete_segments(first) == 1
        in_child(lambda: join(0, first))
        assert partition.delete_segments(second) == 1
        in_child(lambda: join(0, second))
        assert store.verify() == []


def test_what_another_process_is_just_deleting_is_not_lost(tmp_path, caplog):
    path = tmp_path / "store"
    fill(path)
    other = started(f"""
import eoslog, threading
with eoslog.open({str(path)!r}) as store:
    partition, stop = engine_of(store).partition("rows", 0), threading.Event()
    producer = store.producer()
    def work():
        while not stop.is_set():
            for _ in range(60):
                producer.append("rows", 0, [b"x" * 60])
            partition.delete_segments(partition.active_base_offset)
    worker = threading.Thread(target=work)
    worker.start()
    say("open")
    wait()
    stop.set()
    worker.join()
""")
    other.hear("open")
    starts = set()
    for _ in range(40):
        with eoslog.open(path) as store:
            partition = engine_of(store).partition(*WHERE)
            starts.add(partition.log_start_offset)
            assert partition.damage.lost_range(partition.log_start_offset) is None
            assert store.verify() == []
    other.tell()
    other.end()
    assert len(starts) > 5
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("owner", "step"), [(PartitionProducers, "_replayed_from"), (UnifiedLog, "_note_restored")]
)
def test_what_is_deleted_while_producers_are_restored_is_no_error(
    tmp_path, monkeypatch, owner, step
):
    path = tmp_path / "store"
    fill(path)
    other = started(f"""
import eoslog
with eoslog.open({str(path)!r}) as store:
    partition, producer = engine_of(store).partition("rows", 0), store.producer()
    say("open")
    wait()
    for _ in range(200):
        producer.append("rows", 0, [b"x" * 60])
    partition.delete_segments(partition.active_base_offset)
    say("deleted")
    wait()
""")
    other.hear("open")
    deleted = []

    work = getattr(owner, step)

    def ask_for_the_end(one):
        if not deleted and one.log.topic == WHERE.topic:
            other.tell()
            deleted.append(other.hear().word)
            assert one.log.log_end_offset > 200
        return work(one)

    monkeypatch.setattr(owner, step, ask_for_the_end)
    with eoslog.open(path) as store:
        partition = engine_of(store).partition(*WHERE)
        assert deleted == ["deleted"]
        assert partition.damage.lost_range(partition.log_start_offset) is None
        assert store.verify() == []
    other.tell()
    other.end()
