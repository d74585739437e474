"""Disks that are full or read-only, files cut short under an open store: named errors, no loss."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import subprocess
from pathlib import Path

import pytest
from bad_input.small_store import PRODUCER, TOPIC, check_whole, make_store, read_values
from cli_calls import call as run_command
from harness.fork import as_nobody

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    NotAStoreError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreReadOnlyError,
    TopicAlreadyExistsError,
)
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, read_checkpoint
from eoslog.store.retention import apply_retention
from eoslog.store.store import engine_of, parts_of

pytestmark = pytest.mark.forked

NO_ROOM = (StoreFullError,)
BIG = b"x" * 5000


def fill(store: eoslog.Store, producer: eoslog.Producer, count_max: int = 3000) -> int:
    """Append until the disk refuses; how many records were acknowledged."""
    position = producer.next_sequence(TOPIC, 0)
    for _ in range(count_max):
        try:
            producer.append(TOPIC, partition=0, values=[b"%d:" % position + BIG])
        except NO_ROOM as error:
            assert error.outcome == "not_appended"
            return position
        position += 1
    pytest.fail("the disk was never full")


def check_numbers(store: eoslog.Store, count: int) -> None:
    values = read_values(store, 0)
    assert [int(value.split(b":")[0]) for value in values] == list(range(count))


@pytest.fixture
def small_disk(tmp_path_factory):
    """A file system of 4 MiB; only somebody who may mount has one."""
    path = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"no small file system can be mounted: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def open_small(path: Path) -> eoslog.Store:
    store = eoslog.open(path / "store", create=True)
    if TOPIC not in store.topics():
        store.create_topic(TOPIC, config={"segment.bytes": 1 << 19})
    return store


def test_a_full_disk(small_disk):
    """Nothing of the refused call is in, all else is readable, and with room it goes on."""
    (small_disk / "filler").write_bytes(bytes(1 << 20))
    store = open_small(small_disk)
    producer = store.producer(name=PRODUCER)
    count = fill(store, producer)
    assert count > 100
    check_numbers(store, count)
    for _ in range(3):
        with pytest.raises(NO_ROOM):
            producer.append(TOPIC, partition=0, values=[BIG])
    with pytest.raises(StoreError):
        store.create_topic("another", partitions=1000)
    assert "another" not in store.topics()
    check_numbers(store, count)
    (small_disk / "filler").unlink()
    assert producer.next_sequence(TOPIC, 0) == count
    producer.append(TOPIC, partition=0, values=[b"%d:more" % count])
    producer.flush()
    store.close()
    with open_small(small_disk) as store:
        check_numbers(store, count + 1)
        assert store.verify() == []


def test_retention_makes_room_on_a_full_disk_again_and_again(small_disk):
    """Without a free byte; the log start is written down before a segment goes."""
    store = open_small(small_disk)
    partition, files = engine_of(store).partition(TOPIC, 0), parts_of(store).files
    config = {"retention.bytes": 1 << 19, "retention.ms": -1}
    producer = store.producer()
    for _ in range(3):
        with contextlib.suppress(StoreFullError):
            for _ in range(1000):
                producer.append(TOPIC, partition=0, values=[BIG])
                if partition.log_end_offset % 10 == 0:
                    partition.producer_state.persist()
        fill_up(small_disk / "filler")
        first = partition.log.first_base_offset
        assert apply_retention(partition, files.names, config, 1 << 60) > 0
        assert partition.log.first_base_offset > first
        starts = read_checkpoint(small_disk / "store" / LOG_START_OFFSET)
        assert starts[partition.topic_partition] == partition.log.first_base_offset
    (small_disk / "filler").unlink()
    store.close()
    assert not (small_disk / "store" / (LOG_START_OFFSET + ".tmp")).exists()


@pytest.mark.parametrize("others", [0, 60])
def test_a_topic_is_deleted_on_a_full_disk(small_disk, others):
    """That is how room is made."""
    store = open_small(small_disk)
    store.create_topics({f"t{number}": 1 for number in range(others)})
    with contextlib.suppress(StoreFullError):
        for _ in range(1000):
            store.producer().append(TOPIC, partition=0, values=[BIG])
    names = sorted(store.topics())
    for name in names:
        fill_up(small_disk / "filler")
        store.delete_topic(name)
        assert name not in store.topics()
    (small_disk / "filler").unlink()
    store.close()
    with eoslog.open(small_disk / "store") as again:
        assert again.topics() == {}
    assert not list((small_disk / "store").rglob("*.tmp"))


def fill_up(path: Path) -> None:
    """Leave no byte of the disk free."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def test_closing_and_opening_on_a_full_disk(small_disk):
    """Closing may fail by name; what was acknowledged is there when there is room again."""
    store = open_small(small_disk)
    producer = store.producer(name=PRODUCER)
    count = fill(store, producer)
    fill_up(small_disk / "filler")
    try:
        store.close()
    except EoslogError as error:
        assert isinstance(error, StoreError)
    try:
        with open_small(small_disk) as again:
            check_numbers(again, count)
    except StoreError:
        pass
    (small_disk / "filler").unlink()
    with open_small(small_disk) as again:
        check_numbers(again, count)
        assert again.producer(name=PRODUCER).next_sequence(TOPIC, 0) == count


def test_sends_that_did_not_fit_are_kept_for_later(small_disk):
    """send() gathers; a flush that finds no room keeps the records under the same numbers."""
    (small_disk / "filler").write_bytes(bytes(1 << 20))
    store = open_small(small_disk)
    producer = store.producer(name=PRODUCER)
    count = fill(store, producer)
    producer.send(TOPIC, value=b"%d:sent" % count + BIG, partition=0)
    with pytest.raises(NO_ROOM):
        producer.flush()
    (small_disk / "filler").unlink()
    producer.flush()
    check_numbers(store, count + 1)
    store.close()


def test_a_limit_on_the_size_of_files(tmp_path):
    """EFBIG in place of ENOSPC: named as well, and nothing is lost."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, config={"segment.bytes": 1 << 24})
        producer = store.producer(name=PRODUCER)
        producer.append(TOPIC, partition=0, values=[b"0:first"])
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        count, refused = 1, None
        while refused is None and count < 3000:
            try:
                producer.append(TOPIC, partition=0, values=[b"%d:" % count + BIG])
                count += 1
            except StoreError as error:
                refused = error
        assert refused is not None
        check_numbers(store, count)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        producer.append(TOPIC, partition=0, values=[b"%d:more" % count])
    with eoslog.open(path) as store:
        check_numbers(store, count + 1)


# -- directories that are no stores, or may not be written ---------------------------------------


@pytest.mark.parametrize("create", [False, True])
def test_what_is_no_store(tmp_path, create):
    (tmp_path / "file").write_bytes(b"a file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("not to be touched")
    for name in ("file", "full"):
        with pytest.raises(NotAStoreError, match=name):
            eoslog.open(tmp_path / name, create=create)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    if not create:
        for name in ("absent", "absent/below"):
            with pytest.raises(NotAStoreError, match="absent"):
                eoslog.open(tmp_path / name)
        (tmp_path / "empty").mkdir()
        with pytest.raises(NotAStoreError):
            eoslog.open(tmp_path / "empty")
        assert not (tmp_path / "absent").exists()
        assert list((tmp_path / "empty").iterdir()) == []


def test_a_path_below_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"a file")
    for create in (False, True):
        with pytest.raises(EoslogError):
            eoslog.open(tmp_path / "file" / "store", create=create)


@pytest.mark.parametrize("path", ["", "with\x00zero", "x" * 5000, None, 7, b"bytes", object()])
def test_paths_of_no_use(path):
    with pytest.raises((EoslogError, TypeError, ValueError)):
        eoslog.open(path, create=True)


def test_a_directory_that_may_not_be_written(tmp_path):
    path = tmp_path / "store"
    make_store(path)
    for file in [path, *path.rglob("*")]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    for parent in path.parents:
        if parent.stat().st_uid == os.geteuid() and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o555)
    as_nobody()
    with pytest.raises(StoreReadOnlyError, match="store"):
        eoslog.open(path)
    with pytest.raises(StoreReadOnlyError):
        eoslog.open(tmp_path / "new", create=True)


def test_a_read_only_file_system(small_disk):
    path = small_disk / "store"
    make_store(path)
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True, capture_output=True)
    with pytest.raises(StoreReadOnlyError):
        eoslog.open(path)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    with eoslog.open(path) as store:
        check_whole(store)


# -- files that change under an open store --------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_log_cut_short_under_an_open_store(tmp_path, which, share):
    """Reads and appends name it; the process lives, which a load through the map would end."""
    path = tmp_path / "store"
    make_store(path)
    store = eoslog.open(path)
    consumer = store.consumer()
    where = eoslog.TopicPartition(TOPIC, 0)
    consumer.assign([where])
    assert consumer.poll(max_records=3)
    files = sorted(path.glob(f"{TOPIC}-0/*.log"))
    broken = files[0 if which == "first" else -1]
    with broken.open("r+b") as file:
        file.truncate(int(broken.stat().st_size * share))
    log = engine_of(store).partition(TOPIC, 0)
    for offset in range(0, log.log_end_offset, 5):
        try:
            log.fetch_records(offset, 10, 1 << 20)
            log.read(offset)
            log.log.scan_headers(offset)
        except CorruptRecordError as error:
            assert error.path == str(broken)
    for _ in range(40):
        try:
            consumer.poll(timeout=0, max_records=5)
        except CorruptRecordError as error:
            assert error.path == str(broken)
            break
    try:
        producer = store.producer(name=PRODUCER)
        for _ in range(100):
            producer.append(TOPIC, partition=0, values=[BIG[:500]])
        producer.flush()
    except EoslogError as error:
        assert error.outcome in ("not_appended", "unknown", "damaged")
    for ask in (lambda: log.offset_for_timestamp(0), store.verify, store.close):
        try:
            ask()
        except EoslogError as error:
            assert error.outcome in ("unknown", "damaged")


def open_files(below: Path) -> list[str]:
    """What this process has open or mapped below a directory."""
    links = Path("/proc/self/fd")
    opened = [str(link.readlink()) for link in links.iterdir() if link.is_symlink()]
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted({name for name in opened + mapped if name.startswith(str(below))})


def test_a_closed_store_holds_no_file(tmp_path):
    """Its space is free, its file system can be unmounted, and descriptors do not pile up."""
    path = tmp_path / "store"
    make_store(path)
    gc.collect()
    store = eoslog.open(path)
    check_whole(store)
    assert open_files(path)
    store.close()
    assert open_files(path) == []


def test_a_deleted_topic_holds_no_file(tmp_path):
    path = tmp_path / "store"
    make_store(path)
    gc.collect()
    with eoslog.open(path) as store:
        check_whole(store)
        store.delete_topic(TOPIC)
        assert [name for name in open_files(path) if f"/{TOPIC}-" in name] == []


@pytest.mark.parametrize("how", ["deleted", "cut"])
@pytest.mark.parametrize("durability", ["process", "commit", "always"])
def test_no_sync_is_acknowledged_for_a_file_that_is_not_there_any_more(
    tmp_path, caplog, how, durability
):
    """What was appended went to a file that nobody will find: the first sync says so."""
    store = eoslog.open(tmp_path / "store", create=True, durability=durability)
    store.create_topic(TOPIC)
    producer = store.producer(name=PRODUCER)
    for _ in range(20):
        producer.append(TOPIC, partition=0, values=[BIG[:500]])
    producer.flush()
    parts_of(store).checkpointer.write_checkpoints()
    producer.append(TOPIC, partition=0, values=[BIG[:500]])
    (file,) = (tmp_path / "store").glob(f"{TOPIC}-0/*.log")
    if how == "deleted":
        file.unlink()
    else:
        # As a rotation of log files does. A store to the page that is cut would be a SIGBUS.
        os.truncate(file, 4096)
    refusals = []
    if how == "deleted":
        calls = [lambda: producer.append(TOPIC, partition=0, values=[BIG[:500]])]
    else:
        calls = []
    for call in (*calls, producer.flush, store.flush, store.close):
        try:
            call()
        except StoreError as error:
            refusals.append(error)
    # With "process" nothing is synced before the close.
    assert refusals
    assert isinstance(refusals[0], StoreFailedError)
    assert "deleted or truncated by another program" in str(refusals[0])
    with eoslog.open(tmp_path / "store") as store:
        assert len(read_values(store, 0)) < 20
    assert "had been synced" in caplog.text


def test_files_deleted_under_an_open_store(tmp_path):
    """The open files live on; closing may fail by name, and other partitions are not touched."""
    path = tmp_path / "store"
    make_store(path)
    store = eoslog.open(path)
    store.partition(TOPIC, 0)
    for file in path.glob(f"{TOPIC}-0/*"):
        file.unlink()
    try:
        read_values(store, 0)
        producer = store.producer(name=PRODUCER)
        for _ in range(20):
            producer.append(TOPIC, partition=0, values=[BIG[:500]])
    except EoslogError:
        pass
    assert len(read_values(store, 1)) == 90
    with contextlib.suppress(EoslogError):
        store.close()
    with eoslog.open(path) as store:
        assert len(read_values(store, 1)) == 90
        with pytest.raises(TopicAlreadyExistsError):
            store.create_topic(TOPIC)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("room_pages", [0, 2, 3, 5])
def test_commands_that_read_on_a_disk_with_little_room(small_disk, room_pages, clean):
    """What could be read is printed whole; where the close finds no room, its error comes after."""
    store = open_small(small_disk)
    store.producer(name=PRODUCER).append(TOPIC, partition=0, values=[b"1", b"2"])
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(TOPIC, b"3")
    store.consumer("g").commit({TopicPartition(TOPIC, 0): 1})
    store.close()
    commands = [("topics",), ("topics", "describe", TOPIC), ("groups", "list"), ("verify",)]
    commands += [("transactions", "list"), ("consume", TOPIC), ("producers",)]
    commands = [(*command, "--store", small_disk / "store", "--json") for command in commands]
    expected = [run_command(*command).stdout for command in commands]
    if not clean:
        (small_disk / "store" / ".kafka_cleanshutdown").unlink()
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass
    size = (small_disk / "filler").stat().st_size
    os.truncate(small_disk / "filler", size - 4096 * room_pages)
    for command, wanted in zip(commands, expected, strict=True):
        answer = run_command(*command)
        assert answer.stdout in ("", wanted)
        assert answer.status == (1 if answer.stderr else 0)
        assert answer.stdout or "Error" in answer.stderr
