"""The checkpoints at the top of a store are replaced where they say something new, together."""

import threading
from pathlib import Path

import pytest
from crash.interrupted_lines import interrupted_at

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.shared_page import SharedPage
from eoslog.errors import StoreFailedError, StoreFullError
from eoslog.fs import atomic_file
from eoslog.fs.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_checkpoint,
)
from eoslog.storage.offset_checkpoints import LastOffsets, OffsetCheckpoints
from eoslog.store.store import engine_of, parts_of

T0 = TopicPartition("t", 0)
NAMES = (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK)


@pytest.fixture
def shared(tmp_path):
    return SharedPage(str(tmp_path / "shared"), bytes(range(16)), create=True)


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    """The names of what the atomic files sync, in order; "." is the directory."""
    names: list[str] = []
    write_aside, sync_directory = atomic_file.write_aside, atomic_file.sync_directory

    def write(path: Path, content: bytes, *, sync: bool) -> None:
        if sync:
            names.append(path.name)
        write_aside(path, content, sync=sync)

    def sync_names(path: Path) -> None:
        names.append(".")
        sync_directory(path)

    monkeypatch.setattr(atomic_file, "write_aside", write)
    monkeypatch.setattr(atomic_file, "sync_directory", sync_names)
    return names


def test_what_changed_is_synced_with_one_sync_of_the_directory(tmp_path, shared, synced):
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    checkpoints.write({T0: LastOffsets(10, 1, 12, 10)})
    assert synced == [*NAMES, "."]
    synced.clear()
    checkpoints.write({T0: LastOffsets(20, 1, 22, 20)})
    assert synced == [RECOVERY_POINT, HIGH_WATERMARK, "."]
    synced.clear()
    checkpoints.write({T0: LastOffsets(20, 1, 22, 20)})
    assert synced == []


def test_what_was_not_synced_is_synced_though_nothing_changed(tmp_path, shared, synced):
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    checkpoints.write({T0: LastOffsets(10, 0, 12, 10)}, sync=False)
    assert synced == []
    checkpoints.write({T0: LastOffsets(10, 0, 12, 10)})
    assert synced == [*NAMES, "."]
    # Nor is it known what another process did.
    synced.clear()
    OffsetCheckpoints(tmp_path, shared).write({T0: LastOffsets(10, 0, 12, 10)}, sync=False)
    assert synced == []
    OffsetCheckpoints(tmp_path, shared).write({T0: LastOffsets(10, 0, 12, 10)})
    assert synced == [*NAMES, "."]


def test_a_start_that_was_raised_is_never_replaced_by_an_unsynced_file(tmp_path, shared, synced):
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    checkpoints.raise_start(T0, lambda: 7)
    synced.clear()
    checkpoints.write({T0: LastOffsets(10, 7, 12, 10)}, sync=False)
    assert synced == []
    other = TopicPartition("t", 1)
    checkpoints.write({T0: LastOffsets(10, 7, 12, 10), other: LastOffsets(0, 0, 0, 0)}, sync=False)
    assert synced == [LOG_START_OFFSET, "."]


def test_what_another_process_replaced_is_not_taken_as_synced(tmp_path, shared, synced):
    ours, theirs = OffsetCheckpoints(tmp_path, shared), OffsetCheckpoints(tmp_path, shared)
    ours.write({T0: LastOffsets(10, 1, 12, 10)})
    theirs.write({T0: LastOffsets(20, 1, 22, 20)}, sync=False)
    synced.clear()
    ours.write({T0: LastOffsets(20, 1, 22, 20)})
    assert synced == [RECOVERY_POINT, HIGH_WATERMARK, "."]


@pytest.mark.parametrize("sync", [True, False])
def test_what_was_removed_meanwhile_is_written_again(tmp_path, shared, sync):
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    checkpoints.write({T0: LastOffsets(10, 1, 12, 10)})
    (tmp_path / LOG_START_OFFSET).unlink()
    checkpoints.write({T0: LastOffsets(10, 1, 12, 10)}, sync=sync)
    assert read_checkpoint(tmp_path / LOG_START_OFFSET) == {T0: 1}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("step", ["write_aside", "put_in_place"])
def test_what_could_not_be_written_is_written_the_next_time(
    tmp_path, shared, monkeypatch, step, sync
):
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    checkpoints.write({T0: LastOffsets(10, 1, 12, 10)})
    work = getattr(atomic_file, step)

    def fail(path: Path, *rest: bytes, **named: bool) -> None:
        if path.name == HIGH_WATERMARK:
            raise StoreFullError("no space")
        work(path, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(atomic_file, step, fail)
        with pytest.raises(StoreFullError):
            checkpoints.write({T0: LastOffsets(20, 2, 22, 20)}, sync=sync)
    kept = step == "write_aside"
    assert checkpoints.recovery_point(T0) == (10 if kept else 20)
    assert read_checkpoint(tmp_path / HIGH_WATERMARK) == {T0: 12}
    checkpoints.write({T0: LastOffsets(20, 2, 22, 20)}, sync=sync)
    found = [read_checkpoint(tmp_path / name)[T0] for name in NAMES]
    assert found == [20, 2, 22]


def test_a_close_after_reads_alone_syncs_no_checkpoint(store_path, synced):
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("t", partitions=3)
        for number in range(3):
            store.producer().append("t", number, [b"value"])
    before = {name: (store_path / name).stat().st_ino for name in NAMES}
    with eoslog.open(store_path) as store:
        consumer = store.consumer()
        consumer.assign([TopicPartition("t", number) for number in range(3)])
        assert len(consumer.poll(10)) == 3
        synced.clear()
    assert synced == [".kafka_cleanshutdown", "."]
    assert {name: (store_path / name).stat().st_ino for name in NAMES} == before
    # After an unclean stop nothing is known of them.
    (store_path / ".kafka_cleanshutdown").unlink()
    with eoslog.open(store_path) as store:
        for number in range(3):
            store.partition("t", number)
        synced.clear()
    assert synced == [*NAMES, ".", ".kafka_cleanshutdown", "."]


def is_ours(frame):
    return frame.f_code.co_filename.endswith(("/storage/offset_checkpoints.py", "/atomic_file.py"))


@pytest.mark.parametrize(
    ("call", "after"),
    [
        (lambda one: one.write({T0: LastOffsets(20, 2, 22, 20)}), ({T0: 20}, {T0: 2}, {T0: 22})),
        (lambda one: one.raise_start(T0, lambda: 3), ({T0: 10}, {T0: 3}, {T0: 12})),
        (lambda one: one.lower_recovery_point(T0, 4), ({T0: 4}, {T0: 1}, {T0: 12})),
        (lambda one: one.forget([T0]), ({}, {}, {})),
    ],
)
def test_whatever_is_interrupted_the_next_call_writes_it(tmp_path, shared, call, after):
    line, was_cut = 0, True
    while was_cut:
        line += 1
        checkpoints = OffsetCheckpoints(tmp_path, shared)
        checkpoints.forget([T0])
        checkpoints.write({T0: LastOffsets(10, 1, 12, 10)})
        # What it read itself it may not have read again yet.
        checkpoints = OffsetCheckpoints(tmp_path, shared)
        was_cut = False
        with interrupted_at(line, is_ours):
            try:
                call(checkpoints)
            except KeyboardInterrupt:
                was_cut = True
        call(checkpoints)
        assert tuple(read_checkpoint(tmp_path / name) for name in NAMES) == after, f"line {line}"
    assert line > 20


def test_a_start_whose_directory_could_not_be_synced_is_synced_the_next_time(
    tmp_path, shared, synced, monkeypatch
):
    """Segments below it are deleted then: a power cut must not bring the earlier start back."""
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    checkpoints.write({T0: LastOffsets(10, 1, 12, 10)})

    def fail(_: Path) -> None:
        raise StoreFailedError("no sync")

    with monkeypatch.context() as patched:
        patched.setattr(atomic_file, "sync_directory", fail)
        with pytest.raises(StoreFailedError):
            checkpoints.raise_start(T0, lambda: 7)
    synced.clear()
    checkpoints.raise_start(T0, lambda: 7)
    assert "." in synced


def test_a_lowered_recovery_point_rises_with_what_is_flushed_alone(tmp_path, shared):
    """Commits raise the recovery point, and sync no index files: a checkpoint is not to pass it."""
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    checkpoints.write({T0: LastOffsets(10, 1, 12, 10)})
    checkpoints.lower_recovery_point(T0, 4)
    checkpoints.lower_recovery_point(T0, 6)
    assert read_checkpoint(tmp_path / RECOVERY_POINT) == {T0: 4}
    checkpoints.write({T0: LastOffsets(8, 1, 12, 4)})
    assert read_checkpoint(tmp_path / RECOVERY_POINT) == {T0: 4}


def test_a_loss_is_noted_while_another_thread_writes_the_checkpoints(store_path, monkeypatch):
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("t", config={"segment.bytes": 4096})
        engine_of(store).partition("t", 0).append_columns([b"v" * 300] * 30)
    sorted((store_path / "t-0").glob("*.log"))[-1].unlink()
    begun = threading.Event()
    lower = OffsetCheckpoints.lower_recovery_point

    def noted(self, where: TopicPartition, offset: int) -> None:
        begun.set()
        lower(self, where, offset)

    monkeypatch.setattr(OffsetCheckpoints, "lower_recovery_point", noted)
    with eoslog.open(store_path) as store:
        renew = OffsetCheckpoints.renew
        opening = threading.Thread(target=store.partition, args=("t", 0), daemon=True)

        def renew_meanwhile(self, known, *, sync: bool) -> None:
            def look() -> object:
                if opening.ident is None:
                    opening.start()
                    assert begun.wait(30)
                return known()

            renew(self, look, sync=sync)

        monkeypatch.setattr(OffsetCheckpoints, "renew", renew_meanwhile)
        write = parts_of(store).checkpointer.write_offsets
        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(30)
        assert not writing.is_alive(), "each of the two waits for the other"
        opening.join()
        end = store.partition("t", 0).log_end_offset
        assert read_checkpoint(store_path / RECOVERY_POINT)[T0] == end


def test_room_is_reserved_where_the_file_can_be_looked_at(tmp_path, shared, monkeypatch):
    checkpoints = OffsetCheckpoints(tmp_path, shared)
    stat = Path.stat

    def refuse(path: Path, **options: bool) -> object:
        if path.name == LOG_START_OFFSET:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    checkpoints.reserve()
    monkeypatch.undo()
    checkpoints.write({T0: LastOffsets(10, 1, 12, 10)})
    assert read_checkpoint(tmp_path / LOG_START_OFFSET) == {T0: 1}
