"""A process may have fewer files open than its store has partitions: idle ones are closed."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from forked import in_a_child
from other_process import OtherProcess
from staged_jobs import quick_directory

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.forked

FILES = 96
PARTITIONS = 150
SMALL = {"segment.bytes": 4096, "retention.ms": -1}


@contextmanager
def files_allowed(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_a_log(name: str) -> bool:
    """Whether it is a segment of this store: what runs the tests may have files of its own that
    end in .log."""
    return name.endswith(".log") and "/store/t-" in name


def open_logs() -> list[str]:
    """The segment files of the topic that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return [name for name in found if is_a_log(name)]


def mapped_logs() -> int:
    return sum(is_a_log(line.rstrip()) for line in Path("/proc/self/maps").open())


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


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with quick_directory(tmp_path) as folder:
        path = Path(folder, "store")
        with eoslog.open(path, create=True, durability="process") as store:
            store.create_topic("t", partitions=PARTITIONS, config=SMALL)
        yield path


def append_to_all(store: eoslog.Store, values: list[bytes]) -> None:
    producer = store.producer()
    for number in range(PARTITIONS):
        producer.append("t", partition=number, values=values)


def test_all_are_written_read_and_verified(path):
    def work():
        with files_allowed(FILES):
            with eoslog.open(path, durability="process") as store:
                for turn in range(3):
                    append_to_all(store, [b"%d" % turn, b"more"])
                    assert len(open_logs()) <= FILES // 2
                    assert mapped_logs() <= FILES // 2
                wanted = [b"0", b"more", b"1", b"more", b"2", b"more"]
                assert everything(store) == in_each(wanted)
                assert store.verify() == []
                assert len(open_logs()) <= FILES // 2
            with eoslog.open(path) as store:
                assert everything(store) == in_each(wanted)

    in_a_child(work)


def test_a_transaction_over_all_of_them(path):
    def work():
        with files_allowed(FILES), eoslog.open(path, durability="process") as store:
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

    in_a_child(work)


def test_processes_follow_each_other(path):
    """Segments end and begin in one process while the other one has the files closed."""
    code = f"""
import resource, eoslog
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
store = eoslog.open({str(path)!r}, durability="process")
producer = store.producer()
say("open")
while (turn := wait()) != "end":
    for number in range({PARTITIONS}):
        producer.append("t", partition=number, values=[b"other " + turn.encode() + b"." * 700] * 2)
    say("done")
store.close()
"""

    def work():
        other = OtherProcess(code)
        assert other.hear() == "open"
        with files_allowed(FILES), eoslog.open(path, durability="process") as store:
            for turn in range(6):
                append_to_all(store, [b"own %d" % turn + b"." * 900])
                other.tell(str(turn))
                assert other.hear() == "done"
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
            assert store.partition("t", 0).segment_count > 2
            other.tell("end")
            other.end()
            assert store.verify() == []

    in_a_child(work)


def test_what_was_deleted_meanwhile_is_gone(path):
    """Another process ends and deletes the segments of a partition whose file is closed here."""
    code = f"""
import eoslog
store = eoslog.open({str(path)!r}, durability="process")
wait()
producer = store.producer()
for number in range(20):
    producer.append("t", partition=0, values=[b"%d" % number + b"." * 900])
store.partition("t", 0).delete_segments(15)
say("deleted")
wait()
store.close()
"""

    def work():
        other = OtherProcess(code)
        with files_allowed(FILES), eoslog.open(path, durability="process") as store:
            append_to_all(store, [b"first"])
            append_to_all(store, [b"second"])  # The file of partition 0 is closed by now.
            other.tell()
            assert other.hear() == "deleted"
            assert store.producer().append("t", partition=0, values=[b"last"]).base_offset == 22
            values = everything(store)[0]
            assert values[0].startswith(b"12") and values[-1] == b"last"
            other.tell()
            other.end()
            assert store.verify() == []

    in_a_child(work)


def test_a_file_that_was_replaced_is_named(path):
    """What was appended is not appended to another file of the name."""

    def work():
        with files_allowed(FILES):
            store = eoslog.open(path, durability="process")
            append_to_all(store, [b"first"])
            append_to_all(store, [b"second"])
            log = next(path.rglob("t-0/*.log"))
            copy = log.with_suffix(".copy")
            copy.write_bytes(log.read_bytes())
            copy.replace(log)
            with pytest.raises(eoslog.errors.EoslogError, match="deleted or cut short"):
                store.producer().append("t", partition=0, values=[b"third"])
            assert everything_but_first(store)
            with pytest.raises(eoslog.errors.StoreFailedError, match=r"t-0.*deleted or cut short"):
                store.close()

    def everything_but_first(store):
        consumer = store.consumer()
        consumer.assign([TopicPartition("t", 1)])
        return [record.value for record in consumer.poll(0)] == [b"first", b"second"]

    in_a_child(work)


def test_threads_use_them_at_once(path):
    """One opens a file again to read as the other one does to write."""

    def work():
        with files_allowed(FILES), eoslog.open(path, durability="process") as store:
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

    in_a_child(work)


def test_a_partition_in_use_stays_open(path):
    """The hand passes what is used again and again."""

    def work():
        with files_allowed(FILES), eoslog.open(path, durability="process") as store:
            producer = store.producer()
            for number in range(PARTITIONS):
                producer.append("t", partition=number, values=[b"one"])
                producer.append("t", partition=0, values=[b"again"])
                assert [name for name in open_logs() if "/t-0/" in name], number

    in_a_child(work)


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

    def work():
        other = OtherProcess(code)
        with files_allowed(FILES), eoslog.open(path, durability="process") as store:
            store.producer().append("t", partition=0, values=[b"first"])
            other.tell()
            assert other.hear() == "rolled"
            taken = []
            with pytest.raises(eoslog.errors.StoreError, match="Too many open files"):
                with suppress(OSError):
                    while True:
                        taken.append(os.dup(0))
                store.partition("t", 0).log_end_offset  # noqa: B018
            for descriptor in taken:
                os.close(descriptor)
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

    in_a_child(work)


def test_a_staged_file_that_became_an_empty_segment_takes_nothing_more(path):
    """It has its other name still: who opens the file again sees that."""
    code = f"""
from eoslog.staging import staged_job
staged_job.WHOLE_FILE_BYTES_MIN = 0
import eoslog
from eoslog.staging.staged_commit import StagedCommits
from eoslog.staging.staged_writer import StagedWriter
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
os._exit(0)
"""

    def work():
        other = OtherProcess(code)
        with files_allowed(FILES), eoslog.open(path, durability="process") as store:
            for number in range(PARTITIONS):
                store.partition("t", number)
            assert not [name for name in open_logs() if "/t-0/" in name]
            other.tell()
            assert other.hear() == "adopted"
            (adopted,) = path.glob("t-0/*.log")
            staged = adopted.stat()
            assert staged.st_nlink == 2
            store.producer().append("t", partition=0, values=[b"own"])
            assert adopted.stat().st_size == staged.st_size
            assert everything(store)[0] == [b"staged"] * 3 + [b"own"]
            other.tell()
            other.end()

    in_a_child(work)
