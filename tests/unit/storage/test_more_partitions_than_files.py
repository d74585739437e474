"""A process may have fewer files open than its store has partitions: idle ones are closed.

The descriptor alone goes where the map keeps the file and its lock, in `process`; else all of it.
"""

from __future__ import annotations

import fcntl
import gc
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest
from harness.crew import started
from staged_jobs import quick_directory

import eoslog
from eoslog import TopicPartition
from eoslog.storage import log_opener
from eoslog.store import files as store_files
from eoslog.store.store import engine_of, parts_of

pytestmark = pytest.mark.forked

MAPPED_FILES_MAX = log_opener.MAPPED_FILES_MAX
PARTITIONS = 150
STORE_FILES = 34  # Which a store opens beside its segments, and some to spare.
SMALL = {"segment.bytes": 4096, "retention.ms": -1}


def few_files() -> int:
    """A limit of this process: half of it is for segments, the other half for what is open already
    and what else a store opens.
    """
    gc.collect()  # What earlier tests left open is closed now, or never.
    count = 2 * (len(open_files()) + STORE_FILES)
    assert count // 2 < PARTITIONS, open_files()
    return count


@contextmanager
def files_allowed(count: int | None = None) -> Iterator[int]:
    """Lower the limit, and give it."""
    count = few_files() if count is None else count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        with mock.patch.object(store_files, "raise_open_files", lambda: None):
            yield count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_a_log(name: str) -> bool:
    """Whether it is a segment of this store: what runs the tests may have files of its own that
    end in .log."""
    return name.endswith(".log") and "/store/t-" in name


def open_files() -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found


def open_logs() -> list[str]:
    """The segment files of the topic that this process has open."""
    return [name for name in open_files() if is_a_log(name)]


def mapped_logs() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = [line.partition("/")[2] for line in lines]
    return [f"/{name}" for name in names if is_a_log(name)]


def in_each(values: list[bytes]) -> dict[int, list[bytes]]:
    return {number: [*values] for number in range(PARTITIONS)}


def everything(store: eoslog.Store, **options: object) -> dict[int, list[bytes | None]]:
    """The values of each partition that has any, in order."""
    consumer = store.consumer(**options)
    consumer.assign([TopicPartition("t", number) for number in range(PARTITIONS)])
    found: dict[int, list[bytes | None]] = {}
    while records := consumer.poll(0):
        for record in records:
            found.setdefault(record.partition, []).append(record.value)
    return found


@pytest.fixture(params=[MAPPED_FILES_MAX, 0], ids=["mapped", "unmapped"])
def maps(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many files keep their maps."""
    with mock.patch.object(log_opener, "MAPPED_FILES_MAX", request.param):
        yield request.param


@pytest.fixture
def path(tmp_path: Path, maps: int) -> Iterator[Path]:
    with quick_directory(tmp_path) as folder:
        path = Path(folder, "store")
        with eoslog.open(path, create=True, durability="process") as store:
            store.create_topic("t", partitions=PARTITIONS, config=SMALL)
        yield path


def append_to_all(store: eoslog.Store, values: list[bytes]) -> None:
    producer = store.producer()
    for number in range(PARTITIONS):
        producer.append("t", partition=number, values=values)


def test_all_are_written_read_and_verified(path, maps):
    with files_allowed() as files:
        with eoslog.open(path, durability="process") as store:
            for turn in range(3):
                append_to_all(store, [b"%d" % turn, b"more"])
                assert len(open_logs()) <= files // 2
                assert maps or len(mapped_logs()) <= files // 2
            wanted = [b"0", b"more", b"1", b"more", b"2", b"more"]
            assert everything(store) == in_each(wanted)
            assert store.verify() == []
            assert len(open_logs()) <= files // 2
        with eoslog.open(path) as store:
            assert everything(store) == in_each(wanted)


def test_a_transaction_over_all_of_them(path):
    with files_allowed(), eoslog.open(path, durability="process") as store:
        with store.producer(transactional_id="loop") as producer:
            producer.init_transactions()
            for turn in range(4):
                with suppress(RuntimeError), producer.transaction():
                    for number in range(PARTITIONS):
                        producer.send("t", b"%d" % turn, partition=number)
                    if turn == 1:
                        raise RuntimeError("aborted")
        read = everything(store, isolation_level="read_committed")
        assert read == in_each([b"0", b"2", b"3"])
        assert store.verify() == []


def test_processes_follow_each_other(path):
    """Segments end and begin in one process while the other one has the files closed."""
    code = f"""
import resource, eoslog
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
store = eoslog.open({str(path)!r}, durability="process")
producer = store.producer()
say("open")
while (turn := wait()) != "end":
    for number in range({PARTITIONS}):
        producer.append("t", partition=number, values=[b"other " + turn.encode() + b"." * 700] * 2)
    say("done")
store.close()
"""
    other = started(code)
    other.hear("open")
    with files_allowed(), eoslog.open(path, durability="process") as store:
        for turn in range(6):
            append_to_all(store, [b"own %d" % turn + b"." * 900])
            other.tell(str(turn))
            other.hear("done")
        wanted = [
            value
            for turn in range(6)
            for value in (
                b"own %d" % turn + b"." * 900,
                b"other %d" % turn + b"." * 700,
                b"other %d" % turn + b"." * 700,
            )
        ]
        assert everything(store) == in_each(wanted)
        assert engine_of(store).partition("t", 0).segment_count > 2
        other.tell("end")
        other.end()
        assert store.verify() == []


def test_what_was_deleted_meanwhile_is_gone(path):
    """Another process ends and deletes the segments of a partition whose file is closed here."""
    code = f"""
import eoslog
store = eoslog.open({str(path)!r}, durability="process")
wait()
producer = store.producer()
for number in range(20):
    producer.append("t", partition=0, values=[b"%d" % number + b"." * 900])
engine_of(store).partition("t", 0).delete_segments(15)
say("deleted")
wait()
store.close()
"""
    other = started(code)
    with files_allowed(), eoslog.open(path, durability="process") as store:
        append_to_all(store, [b"first"])
        append_to_all(store, [b"second"])  # The file of partition 0 is closed by now.
        other.tell()
        other.hear("deleted")
        assert store.producer().append("t", partition=0, values=[b"last"]).base_offset == 22
        values = everything(store)[0]
        assert values[0].startswith(b"12") and values[-1] == b"last"
        other.tell()
        other.end()
        assert store.verify() == []


def replaced_log(path: Path) -> tuple[Path, bytes]:
    """The file of partition 0, with another one in its place, and what that holds."""
    log = next(path.rglob("t-0/*.log"))
    copy = log.with_suffix(".copy")
    copy.write_bytes(log.read_bytes())
    copy.replace(log)
    return log, log.read_bytes()


def test_a_file_that_was_replaced_is_named(path, maps):
    """What was appended is not appended to another file of the name."""
    with files_allowed():
        store = eoslog.open(path, durability="process")
        append_to_all(store, [b"first"])
        append_to_all(store, [b"second"])
        log, content = replaced_log(path)
        if maps:
            store.producer().append("t", partition=0, values=[b"into the file that is mapped"])
        else:
            with pytest.raises(eoslog.errors.EoslogError, match="deleted or truncated"):
                store.producer().append("t", partition=0, values=[b"third"])
        with pytest.raises(eoslog.errors.EoslogError, match="deleted or truncated"):
            store.partition("t", 0).read(0)
        assert log.read_bytes() == content
        consumer = store.consumer()
        consumer.assign([TopicPartition("t", 1)])
        assert [record.value for record in consumer.poll(0)] == [b"first", b"second"]
        with pytest.raises(eoslog.errors.StoreFailedError, match=r"t-0.*deleted or truncated"):
            store.close()
        assert log.read_bytes() == content


def test_a_sync_names_a_replaced_file_of_which_the_map_alone_is_left(path, maps):
    with files_allowed():
        store = eoslog.open(path, durability="process")
        append_to_all(store, [b"first"])
        replaced_log(path)
        (error,) = parts_of(store).files.partitions.sync_all()
        assert "t-0" in str(error) and "deleted or truncated" in str(error)
        with pytest.raises(eoslog.errors.StoreError, match=r"t-0: a (sync|file)"):
            store.close()


def test_a_process_that_may_open_nothing_more_fails_no_log(path):
    """Neither one whose file has to be opened for a sync, nor for the removal of a segment."""
    with files_allowed(), eoslog.open(path, durability="process") as store:
        parts_of(store).checkpointer.stop()
        producer = store.producer()
        for number in range(12):
            producer.append("t", partition=0, values=[b"%d" % number + b"." * 900])
        append_to_all(store, [b"last"])
        append_to_all(store, [b"last"])
        assert not [name for name in open_logs() if "/t-0/" in name]
        partition = engine_of(store).partition("t", 0)
        refused = pytest.raises(eoslog.errors.StoreError, match="Too many open files")
        with files_allowed(0), refused as of_sync:
            partition.sync_up_to(13)
        with files_allowed(0), refused as of_deletion:
            partition.delete_segments(8)
        for caught in (of_sync, of_deletion):
            assert not isinstance(caught.value, eoslog.errors.StoreFailedError)
        partition.sync_up_to(13)
        assert partition.delete_segments(8) > 0
        assert producer.append("t", partition=0, values=[b"more"]).base_offset == 14


def test_so_many_files_keep_their_maps(path):
    most = few_files() // 2 + 12
    with (
        mock.patch.object(log_opener, "MAPPED_FILES_MAX", most),
        files_allowed() as files,
        eoslog.open(path, durability="process") as store,
    ):
        for _ in range(3):
            append_to_all(store, [b"value"])
            # As many are closed at once as an eighth of those that may be open.
            assert most <= len(mapped_logs()) <= most + files // 16 + 1
        assert everything(store) == in_each([b"value"] * 3)


def test_a_file_that_is_mapped_alone_keeps_its_lock(path, maps):
    """Else another process could make a new segment of it once it is deleted."""
    with files_allowed() as files, eoslog.open(path, durability="process") as store:
        append_to_all(store, [b"value"])
        assert len(mapped_logs()) == PARTITIONS if maps else len(mapped_logs()) <= files // 2
        for name in mapped_logs():
            with Path(name).open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_on_an_overlay_no_map_is_kept(tmp_path):
    """There the map is that of another file, and the lock goes with the descriptor."""
    code = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
import test_more_partitions_than_files as tests
import eoslog
store = eoslog.open(sys.argv[1], create=True, durability="process")
store.create_topic("t", partitions=tests.PARTITIONS)
with tests.files_allowed() as files:
    tests.append_to_all(store, [b"value"])
    assert len(tests.mapped_logs()) <= len(tests.open_logs()) <= files // 2
    assert tests.everything(store) == tests.in_each([b"value"])
"""
    with quick_directory(tmp_path) as folder:
        for name in ("lower", "upper", "work", "merged"):
            Path(folder, name).mkdir()
        mount = (
            f"cd {folder} && mount -t overlay overlay"
            " -o userxattr,lowerdir=lower,upperdir=upper,workdir=work merged || exit 77;"
            ' exec "$0" -c "$1" "$2"'
        )
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", mount, sys.executable, code, f"{folder}/merged/store"],
            stderr=subprocess.PIPE,
            text=True,
        )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"no overlay can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr


def test_files_of_which_the_maps_alone_are_left_grow(path):
    """Room for more is reserved with a descriptor."""
    with files_allowed(), eoslog.open(path, durability="process") as store:
        store.create_topic("grown", partitions=PARTITIONS)
        producer = store.producer()
        for _ in range(4):
            for number in range(PARTITIONS):
                producer.append("grown", partition=number, values=[b"." * 40_000])
        assert store.partition("grown", 7).size_bytes > 160_000
        assert store.verify() == []


def test_threads_use_them_at_once(path):
    """One opens a file again to read as the other one does to write."""
    with files_allowed(), eoslog.open(path, durability="process") as store:
        append_to_all(store, [b"first"])
        with ThreadPoolExecutor(4) as threads:
            written = [threads.submit(append_to_all, store, [b"more"] * 3) for _ in range(2)]
            read = [threads.submit(everything, store) for _ in range(6)]
            for one in written:
                one.result()
            for one in read:
                assert {values[0] for values in one.result().values()} == {b"first"}
        assert everything(store) == in_each([b"first", *[b"more"] * 6])
        assert store.verify() == []


def test_a_partition_in_use_stays_open(path, maps):
    """The hand passes what is used again and again."""
    with files_allowed(), eoslog.open(path, durability="process") as store:
        producer = store.producer()
        for number in range(PARTITIONS):
            producer.append("t", partition=number, values=[b"one"])
            producer.append("t", partition=0, values=[b"again"])
            in_use = mapped_logs() if maps else open_logs()
            assert [name for name in in_use if "/t-0/" in name], number


def test_a_segment_that_was_ended_elsewhere_is_opened_again(path):
    """The next one could not be opened; then its own file was closed, as that of the last one."""
    code = f"""
import eoslog
store = eoslog.open({str(path)!r}, durability="process")
wait()
producer = store.producer()
for number in range(8):
    producer.append("t", partition=0, values=[b"%d" % number + b"." * 900])
say("rolled")
wait()
store.close()
"""
    other = started(code)
    with files_allowed(), eoslog.open(path, durability="process") as store:
        # What its thread closes would be looked at by it, too.
        parts_of(store).checkpointer.stop()
        store.producer().append("t", partition=0, values=[b"first"])
        other.tell()
        other.hear("rolled")
        # None at all: what is closed to make room helps nothing.
        with (
            files_allowed(0),
            pytest.raises(eoslog.errors.StoreError, match="Too many open files"),
        ):
            store.partition("t", 0).log_end_offset  # noqa: B018
        # A log that another thread looks at is passed over.
        while [name for name in open_logs() if "/t-0/" in name]:
            for number in range(1, PARTITIONS):
                store.producer().append("t", partition=number, values=[b"."])
        append_to_all(store, [b"second"])
        append_to_all(store, [b"third"])
        values = everything(store)[0]
        assert [value.rstrip(b".") for value in values] == [
            b"first",
            *(b"%d" % number for number in range(8)),
            *(b"second", b"third"),
        ]
        other.tell()
        other.end()
        assert store.verify() == []


def test_a_staged_file_that_became_an_empty_segment_takes_nothing_more(path):
    """It has its other name still: who opens the file again sees that."""
    code = f"""
from eoslog.staging import job as staged_job
staged_job.WHOLE_FILE_BYTES_MIN = 0
import eoslog
from eoslog.staging.commit import StagedCommits
from eoslog.staging.writer import StagedWriter
path = {str(path)!r}
writer = StagedWriter(path, "app", "run", "0", partitions={{"t": {PARTITIONS}}})
writer.append("t", 0, [b"staged"] * 3)
message = writer.close()
store = eoslog.open(path, durability="process")
StagedCommits.clear_leftovers = lambda *_: None
wait()
store.commit_staged("app", 0, [message])
say("adopted")
wait()
"""
    other = started(code)
    with files_allowed(), eoslog.open(path, durability="process") as store:
        for number in range(PARTITIONS):
            store.partition("t", number)
        assert not [name for name in open_logs() if "/t-0/" in name]
        other.tell()
        other.hear("adopted")
        (adopted,) = path.glob("t-0/*.log")
        staged = adopted.stat()
        assert staged.st_nlink == 2
        store.producer().append("t", partition=0, values=[b"own"])
        assert adopted.stat().st_size == staged.st_size
        assert everything(store)[0] == [b"staged"] * 3 + [b"own"]
        other.kill()


def test_with_process_a_file_is_closed_without_a_sync_and_synced_later(path):
    config = {"log.flush.offset.checkpoint.interval.ms": 3_600_000}
    with files_allowed(), eoslog.open(path, durability="process", config=config) as store:
        for turn in range(3):
            append_to_all(store, [b"%d" % turn])
        logs = [engine_of(store).partition("t", number).log for number in range(PARTITIONS)]
        assert [log.recovery_point for log in logs] == [0] * PARTITIONS
        assert sum(log.sync_count for log in logs) == 0
        assert parts_of(store).files.partitions.sync_all() == []
        assert [log.recovery_point for log in logs] == [3] * PARTITIONS


def test_opening_raises_the_limit_of_open_files_unless_it_is_told_not_to(path):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = few_files()
    for raises in (False, True):
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        with eoslog.open(path, config={"eoslog.open.files.raise": raises}):
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            assert soft == (hard if raises else few)
