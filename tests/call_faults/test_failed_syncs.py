"""What a failed sync of a log has to do with what others write and sync at the same time."""

from __future__ import annotations

import pytest

# A sync or write stands still in a call; then another sync of the same log, which needs no turn,
# fails: that of its names, as its oldest segment is deleted.
MEANWHILE = """
import errno, os, sys, threading
from pathlib import Path
from call_faults import failing_calls
from commit_journals import LARGE, with_journal
from harness.waiting import eventually
import eoslog
from eoslog.store.store import engine_of
path, what, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
store = eoslog.open(path, create=True, durability="always", config=LARGE)
store.create_topic("t", partitions=2)
with_journal(store)
producer, partition = store.producer(), engine_of(store).partition("t", 0)
named = store.producer(transactional_id="id")
named.init_transactions()
for _ in range(2):
    producer.append("t", 0, [b"first"])
    partition.roll()
producer.append("t", 0, [b"first"])
producer.append("t", 1, [b"first"])
before = partition.recovery_point, partition.log.durable_offset, partition.log.sync_count

def append_much():
    producer.append("t", 0, [bytes(200_000)])

def append_little():
    producer.append("t", 0, [b"a"])

def commit():
    with named.transaction():
        named.append("t", 0, [bytes(200_000)])
        named.append("t", 1, [b"a"])

def call():
    try:
        globals()[what]()
        said.append("acknowledged")
    except eoslog.errors.StoreFailedError as error:
        said.append(f"{type(error).__name__} {error.outcome}")

said = []
thread = threading.Thread(target=call)
with failing_calls.held(kind, "/t-0/" if kind == "sync" else "/journal/") as is_held:
    thread.start()
    eventually(is_held)
    failing_calls.arm(path / "t-0", "sync", 1, errno.EIO, again=False)
    try:
        partition.delete_segments(2)
    except eoslog.errors.StoreFailedError:
        said.append("failed")
    assert failing_calls.disarm()[:2] == (1, 1)
thread.join()
after = partition.recovery_point, partition.log.durable_offset, partition.log.sync_count
print(*said, after[:2] == before[:2], after[2] - before[2])
os._exit(0)
"""


@pytest.mark.parametrize(
    ("what", "kind", "syncs"),
    [
        pytest.param("append_much", "sync", 1, id="its own sync"),
        pytest.param("commit", "sync", 1, id="the kernel's sync"),
        pytest.param("append_little", "write", 0, id="a record of the journal"),
    ],
)
def test_what_overlaps_a_failed_sync_is_not_acknowledged(tmp_path, run, what, kind, syncs):
    """In whatever process, and though its own sync or write succeeded."""
    said = run(MEANWHILE, tmp_path / "store", what, kind)
    assert said == f"failed StoreFailedError unknown True {syncs}\n"
