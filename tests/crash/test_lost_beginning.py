"""After an unclean stop the first opening tells that a log's oldest segments are gone; and never of
those that were deleted on purpose, wherever that came to its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, call
from harness.fork import die, dies_in_child, in_child
from store_copies import copy_store
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.control_state import start_before
from eoslog.bindings.partition_log import PartitionLog
from eoslog.errors import CorruptRecordError, LogClosedError, StoreFailedError, StoreFullError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, read_checkpoint
from eoslog.fs.identity_files import id_bytes, read_partition_metadata
from eoslog.storage.offset_checkpoints import last_offsets
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.store.retention import apply_retention
from eoslog.store.store import engine_of, parts_of

pytestmark = pytest.mark.crash

WHERE = TopicPartition("rows", 0)
RECORDS = 60
KEEP_TWO = {"retention.bytes": 3500, "retention.ms": -1}


@pytest.fixture
def store(tmp_path):
    """A store at work, with four segments, whose checkpoints were written."""
    with eoslog.open(tmp_path / "store", create=True, config=QUIET) as opened:
        opened.create_topic("rows", config={"segment.bytes": 2000})
        for index in range(RECORDS):
            opened.producer().append("rows", 0, [b"%03d" % index + b"x" * 60])
        opened.flush()
        parts_of(opened).files.checkpoints.write(
            {WHERE: last_offsets(engine_of(opened).partition(*WHERE))}
        )
        assert len(bases(opened.path)) == 4
        yield opened


def bases(store_path: Path) -> list[int]:
    return sorted(int(path.stem) for path in (store_path / str(WHERE)).glob("*.log"))


def segment(store_path: Path, base_offset: int) -> Path:
    return store_path / str(WHERE) / f"{base_offset:020}.log"


def retain(store: eoslog.Store) -> int:
    partition = engine_of(store).partition(*WHERE)
    return apply_retention(partition, parts_of(store).files.names, KEEP_TWO, 0)


def killed(store: eoslog.Store, name: str = "killed") -> Path:
    """What a kill at this moment leaves."""
    return Path(copy_store(store.path, store.path.parent / name))


def assert_sound_from(path: Path, start: int) -> None:
    for _ in range(2):
        with eoslog.open(path, config=QUIET) as store:
            assert store.verify() == []
            partition = store.partition(*WHERE)
            assert partition.log_start_offset == start
            consumer = store.consumer(auto_offset_reset="earliest")
            consumer.assign([WHERE])
            consumer.seek_to_beginning()
            assert [one.offset for one in consumer.poll(0)] == list(range(start, RECORDS))


def assert_told(store: eoslog.Store, start: int, first: int) -> None:
    told = (
        f"the log begins at offset {start}, as its checkpoint has it, and its oldest segment "
        f"begins at {first}: what is missing was deleted"
    )
    (found,) = store.verify()
    assert str(found["reason"]).startswith(told)
    assert found["path"] == str(store.path / str(WHERE))
    consumer = store.consumer()
    consumer.assign([WHERE])
    for lost in (start, first - 1):
        consumer.seek(WHERE, lost)
        with pytest.raises(CorruptRecordError, match=told):
            consumer.poll(0)
    consumer.seek(WHERE, first)
    assert [one.offset for one in consumer.poll(0)] == list(range(first, RECORDS))


def joined(path: Path, first: int) -> None:
    """By a process that joins the one that found it, and writes down where the log begins."""
    with eoslog.open(path, config=QUIET) as store:
        assert_told(store, 0, first)
        parts_of(store).files.checkpoints.write(
            {WHERE: last_offsets(engine_of(store).partition(*WHERE))}
        )


@pytest.mark.parametrize("gone_count", [1, 2, 3])
def test_a_beginning_that_is_gone_after_a_kill_is_told(store, caplog, gone_count):
    path = killed(store)
    first = bases(path)[gone_count]
    for base_offset in bases(path)[:gone_count]:
        segment(path, base_offset).unlink()
    for stopped in ("killed", "closed"):
        caplog.clear()
        with eoslog.open(path, config=QUIET) as again:
            assert_told(again, 0, first)
            assert "lost by the disk" in caplog.text
            in_child(lambda path=path: joined(path, first))
            # Not forgotten by what this process writes down either.
            parts_of(again).files.checkpoints.write(
                {WHERE: last_offsets(engine_of(again).partition(*WHERE))}
            )
            if stopped == "killed":
                path = killed(again, "killed-again")
    with eoslog.open(path, config=QUIET) as again:
        partition = engine_of(again).partition(*WHERE)
        assert partition.delete_segments(RECORDS) == 3 - gone_count
        assert (again.verify() == []) is (gone_count < 3)


class Watched:
    """Called where a partition writes its start down; says what a kill before and behind leaves."""

    def __init__(self, store: eoslog.Store) -> None:
        self._store = store
        self._partition = engine_of(store).partition(*WHERE)
        self._write = self._partition.write_start
        self._partition.write_start = self
        self.before: list[Path] = []
        self.behind: list[Path] = []
        self.refuse: Exception | None = None

    def __call__(self, look: Callable[[], int], show: Callable[[int], object]) -> None:
        self.before.append(killed(self._store, f"unwritten-{len(self.before)}"))
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            look()
            raise error
        self._write(look, show)
        self.behind.append(killed(self._store, f"written-{len(self.behind)}"))


def test_a_kill_anywhere_in_a_retention_loses_nothing_else(store):
    """Before the start is written down, behind that, behind each deletion."""
    watched = Watched(store)
    first, second, third, _ = bases(store.path)
    assert retain(store) == 2
    (unwritten,), (written,) = watched.before, watched.behind
    deleted = killed(store)
    half = killed(store, "half")
    shutil.copy(segment(written, second), segment(half, second))
    states = {unwritten: (first, first), written: (third, first), deleted: (third, third)}
    states[half] = (third, second)
    for path, (start, oldest) in states.items():
        assert bases(path)[0] == oldest
        assert_sound_from(path, start)


def test_the_next_opening_goes_on_where_a_retention_stopped(store):
    watched = Watched(store)
    third = bases(store.path)[2]
    retain(store)
    (path,) = watched.behind
    assert bases(path)[0] == 0
    with eoslog.open(path, config=QUIET) as again:
        assert again.partition(*WHERE).log_start_offset == third
        assert bases(path)[0] == third
        assert retain(again) == 0
    assert_sound_from(path, third)


@pytest.mark.parametrize("error", [StoreFailedError("a sync failed"), StoreFullError("no room")])
def test_a_start_that_cannot_be_written_down_deletes_nothing(store, error):
    """Not on a full disk either: room for it is reserved."""
    watched = Watched(store)
    watched.refuse = error
    with pytest.raises(type(error)):
        retain(store)
    assert bases(store.path)[0] == 0
    assert_sound_from(killed(store), 0)
    assert retain(store) == 2


def test_the_start_of_a_deleted_topic_is_not_written_down(store):
    """It would hide the beginning of the next topic of the name."""
    partition = engine_of(store).partition(*WHERE)
    store.delete_topic("rows")
    with pytest.raises(LogClosedError):
        partition.delete_segments(RECORDS)
    assert WHERE not in read_checkpoint(store.path / LOG_START_OFFSET)


def test_a_start_is_never_lowered(store):
    checkpoints = parts_of(store).files.checkpoints
    for start, known in ((10, 10), (5, 10), (11, 11)):
        checkpoints.raise_start(WHERE, lambda start=start: start)
        assert checkpoints.log_start_offset(WHERE) == known
        assert read_checkpoint(store.path / LOG_START_OFFSET)[WHERE] == known
    parts_of(store).files.checkpoints.write(
        {WHERE: last_offsets(engine_of(store).partition(*WHERE))}
    )


def test_a_start_that_could_not_be_written_is_written_the_next_time(store, monkeypatch):
    checkpoints = parts_of(store).files.checkpoints
    with monkeypatch.context() as patched:
        write = "eoslog.storage.offset_checkpoints.write_checkpoints"
        patched.setattr(write, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            checkpoints.raise_start(WHERE, lambda: 7)
    assert checkpoints.log_start_offset(WHERE) == 0
    checkpoints.raise_start(WHERE, lambda: 7)
    assert read_checkpoint(store.path / LOG_START_OFFSET)[WHERE] == 7
    checkpoints.write({WHERE: last_offsets(engine_of(store).partition(*WHERE))})


def test_the_start_without_old_segments_is_that_of_one(store):
    log: PartitionLog = engine_of(store).partition(*WHERE).log
    first, second, third, fourth = bases(store.path)
    assert log.first_to_stay(second - 1) == first
    assert log.first_to_stay(third - 1) == second
    assert log.first_to_stay(first) == first
    assert log.first_to_stay(RECORDS) == fourth
    assert log.log_start_offset == first
    assert bases(store.path) == [first, second, third, fourth]


def young(path: Path) -> None:
    """A store that is killed before its first checkpoint, and no later opener wrote one."""
    store = eoslog.open(path, create=True, config=QUIET)
    store.create_topic("rows", config={"segment.bytes": 2000})
    for index in range(RECORDS):
        store.producer().append("rows", 0, [b"%03d" % index + b"x" * 60])
    store.flush()
    die()


def killed_reading(path: Path) -> None:
    assert eoslog.open(path, config=QUIET).partition(*WHERE).log_end_offset == RECORDS
    die()


def killed_opening(path: Path) -> None:
    """Killed in its recovery."""
    PartitionProducers.restore = lambda *_: die()  # type: ignore[method-assign, assignment]
    eoslog.open(path, config=QUIET).partition(*WHERE)


LIVES = [(), (killed_reading,), (killed_opening,), (killed_opening, killed_reading, killed_opening)]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("later", LIVES)
@pytest.mark.parametrize("lives", LIVES)
def test_the_page_of_a_store_without_a_checkpoint_has_its_start(tmp_path, lives, later):
    """However its openers died, before the loss and after it."""
    path = tmp_path / "store"
    for life in (young, *lives):
        assert dies_in_child(partial(life, path))
    assert not (path / LOG_START_OFFSET).exists()
    first = bases(path)[1]
    segment(path, 0).unlink()
    for life in later:
        assert dies_in_child(partial(life, path))
    told = "the log begins at offset 0, as its checkpoint has it, and its oldest segment begins at"
    for options in (["--repair", "--dry-run"], ["--repair"], []):
        answer = call("verify", *options, "--store", path)
        assert answer.status == FAILED
        assert told in answer.stdout
        assert ("refused" in answer.stdout) is bool(options)
    with eoslog.open(path, config=QUIET) as store:
        assert_told(store, 0, first)


def test_the_page_of_another_log_has_no_start(tmp_path):
    path = tmp_path / "store"
    assert dies_in_child(partial(young, path))
    page = path / "state" / "control" / str(WHERE)
    topic_id = id_bytes(read_partition_metadata(path / str(WHERE)))
    assert start_before(str(page), topic_id, 0) == 0
    assert start_before(str(page), topic_id, 1) == -1
    assert start_before(str(page), bytes(16), 0) == -1
    page.unlink()
    assert start_before(str(page), topic_id, 0) == -1
    segment(path, 0).unlink()
    assert call("verify", "--store", path).status == DONE  # Nothing knows that it began at 0.
