"""A call whose process stands still in the middle of it, while others go on."""

import signal
import threading
import time
from os import kill
from pathlib import Path

import pytest
from c_library import built_library
from harness.crew import Member, NurseryClient, started
from staged_jobs import quick_directory

import eoslog
from eoslog.store.store import engine_of, parts_of

RECORDS = 20_000
CALLS_MAX = 30
WRITER = """
import eoslog
from eoslog.storage.partition_producers import PartitionProducers
reattached = []
real = PartitionProducers.reattach
def noted(self):
    reattached.append(1)
    return real(self)
PartitionProducers.reattach = noted
store = eoslog.open({path!r}, durability="process")
values = [b"%08d" % index for index in range({records})]
writer = {writer}
say("opened")
while wait() == "again":
    reattached.clear()
    result = {call}
    say(len(reattached), result.base_offset, result.last_offset, result.record_count)
"""
WRITERS = {
    "the engine's view": ("engine_of(store).partition('t', 0)", "writer.append_columns(values)"),
    "without numbers": (
        "store.producer(config={'enable.idempotence': False})",
        "writer.append('t', 0, values)",
    ),
    "numbered": ("store.producer()", "writer.append('t', 0, values)"),
    "named": ("store.producer('n')", "writer.append('t', 0, values)"),
    "in a transaction": (
        "store.producer(transactional_id='x'); writer.init_transactions()",
        "(writer.begin_transaction(), writer.append('t', 0, values), "
        "writer.commit_transaction())[-2]",
    ),
}


def stop_between_batches(pid, partition):
    """Whether it stands still now between two batches, or before or after its call; else it holds
    the log's lock, and goes on.
    """
    kill(pid, signal.SIGSTOP)
    look = threading.Thread(target=partition.append_columns, args=([b"x" * 8],), daemon=True)
    look.start()
    look.join(timeout=1.0)
    if look.is_alive():
        kill(pid, signal.SIGCONT)
        look.join()
        return False
    return True


@pytest.mark.parametrize(("writer", "call"), WRITERS.values(), ids=WRITERS.keys())
def test_it_goes_on_behind_what_is_in(tmp_path, writer, call):
    path = tmp_path / "store"
    code = WRITER.format(path=str(path), records=RECORDS, writer=writer, call=call)
    with eoslog.open(path, create=True, durability="process") as store:
        parts_of(store).checkpointer.stop()
        store.create_topic("t", config={"segment.bytes": 65536, "max.message.bytes": 200})
        partition = engine_of(store).partition("t", 0)
        with started(code) as other:
            other.hear("opened")
            for _ in range(CALLS_MAX):
                begin = partition.log_end_offset
                other.tell("again")
                deadline = time.monotonic() + 30
                while partition.log_end_offset < begin + 100 and time.monotonic() < deadline:
                    pass
                if stop_between_batches(other.pid, partition):
                    for _ in range(3):
                        partition.append_columns([b"x" * 8] * 500)
                        partition.roll()
                    partition.delete_segments(partition.log_end_offset)
                    kept_from = partition.log_start_offset
                    kill(other.pid, signal.SIGCONT)
                else:
                    kept_from = begin
                said = other.hear()
                reattached, base_offset, last_offset, count = map(int, (said.word, *said.rest))
                assert count == RECORDS
                assert begin <= base_offset
                if reattached and base_offset < kept_from <= last_offset:
                    break
            else:
                pytest.fail("it was never stopped between two batches")
            kept, offset = [], partition.log_start_offset
            while offset <= last_offset:
                records, offset = partition.fetch_records(offset, 10_000, 1 << 20)
                kept += [int(one.value) for one in records if one.value[:1] == b"0"]
        assert kept == list(range(kept[0], RECORDS))
        assert kept[0] > 0


READER = """
import ctypes, resource
import eoslog
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
store = eoslog.open({path!r}, durability="process")
engine_of(store).partition("t", 0).flush()
for number in range(1, 30):
    store.partition("t", number)
consumer = store.consumer()
consumer.assign([eoslog.TopicPartition("t", 0)])
ctypes.CDLL(None).stop_at_opening(b"/t-0/0000")
say("closed")
say([record.value for record in consumer.poll(0)])
"""


def test_what_is_deleted_before_its_file_is_opened_again_is_out_of_range(tmp_path, monkeypatch):
    """The reader goes on where the log begins now."""
    library = built_library(Path(__file__).with_name("stopped_opening.c"), tmp_path)
    with (
        quick_directory(tmp_path) as folder,
        eoslog.open(folder / "store", create=True, durability="process") as store,
    ):
        store.create_topic("t", partitions=30)
        partition = engine_of(store).partition("t", 0)
        partition.append_columns([b"old"])
        with monkeypatch.context() as patched:
            patched.setenv("LD_PRELOAD", str(library))
            nursery = NurseryClient()
        with Member(of=nursery) as other:
            other.begin(READER.format(path=str(store.path)))
            other.hear("closed")
            while ") T " not in Path(f"/proc/{other.pid}/stat").read_text():
                time.sleep(0.01)
            partition.roll()
            partition.append_columns([b"new"])
            partition.delete_segments(1)
            kill(other.pid, signal.SIGCONT)
            assert other.hear().word == "[b'new']"
        nursery.stop()
