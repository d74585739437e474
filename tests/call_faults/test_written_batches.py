"""Large batches of a durable store go into their file by calls; and the files kept for them."""

from __future__ import annotations

from itertools import product

import pytest
from short_form import short_form

APPEND = """
import errno, sys
from pathlib import Path
from call_faults import failing_calls
import eoslog
path, number, again = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
values = [bytes([index]) * 100_000 for index in range(30)]
with eoslog.open(path, create=True, config={"eoslog.spare.segments": 0}) as store:
    store.create_topic("t", config={"max.message.bytes": 1 << 23})
    producer = store.producer(transactional_id="id")
    producer.init_transactions()
    with producer.transaction():
        producer.append("t", partition=0, values=[b"before"])
    if number > 0:
        failing_calls.arm(path / "t-0", "write", number, errno.EIO, again=again)
    with producer.transaction():
        producer.append("t", partition=0, values=values)
        for value in values:
            producer.send("t", value, partition=0)
    if number > 0:
        print(failing_calls.disarm()[1])
with eoslog.open(path) as store:
    assert store.verify() == []
    with store.consumer() as consumer:
        consumer.assign([eoslog.TopicPartition("t", 0)])
        found = []
        while len(found) < 61:
            found += [record.value for record in consumer.poll(timeout=0)]
    assert found == [b"before", *values, *values]
"""
MEANWHILE = """
import errno, sys
from pathlib import Path
from call_faults import failing_calls
from commit_journals import LARGE, with_journal
import eoslog
path, kind, number, again = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
values = [b"%d" % number + bytes(300_000) for number in range(6)]
if kind == "queue":
    failing_calls.arm(path, kind, number, errno.EAGAIN, again=again)
with eoslog.open(path, create=True, config=LARGE) as store:
    store.create_topic("t")
    with_journal(store)
    producer = store.producer(transactional_id="id")
    producer.init_transactions()
    done = []
    for number_of_commit, value in enumerate(values):
        if kind == "sync" and number_of_commit == 1:
            failing_calls.arm(path / "t-0", kind, number, errno.EIO, again=again)
        try:
            with producer.transaction():
                producer.append("t", 0, [value])
        except eoslog.errors.StoreFailedError as error:
            print(type(error).__name__, error.outcome)
            break
        done.append(value)
    count, hits, resynced = failing_calls.disarm()
    print(len(done), hits, resynced)
    if kind == "sync":
        import os
        os._exit(0)
"""
REFUSED = """
import errno, sys
from pathlib import Path
from call_faults import failing_calls
from commit_journals import LARGE, with_journal
import eoslog
path, refused = Path(sys.argv[1]), sys.argv[2] == "True"
with eoslog.open(path, create=True, config=LARGE) as store:
    store.create_topic("t")
    with_journal(store)
    producer = store.producer(transactional_id="id")
    producer.init_transactions()
    with producer.transaction():
        producer.append("t", 0, [b"first"])
    if refused:
        failing_calls.refuse_queued()
    syncs = []
    for _ in range(4):
        failing_calls.begin()
        failing_calls.join(path / "t-0", "sync", 10**9, errno.EIO, "once", "*.log")
        with producer.transaction():
            producer.append("t", 0, [bytes(300_000)])
        syncs.append(failing_calls.disarm()[0])
    print(syncs)
"""
CHECK = """
import sys
import eoslog
with eoslog.open(sys.argv[1]) as store:
    assert store.verify() == []
    producer = store.producer(transactional_id="id")
    producer.init_transactions()
    with store.consumer() as consumer:
        consumer.assign([eoslog.TopicPartition("t", 0)])
        found = [record.value for _ in range(20) for record in consumer.poll(timeout=0)]
    print([int(value[:1]) for value in found])
"""
PREPARE = """
import errno, sys
from pathlib import Path
from call_faults import failing_calls
import eoslog
from eoslog.store.store import engine_of
path, durability = Path(sys.argv[1]), sys.argv[2]
with eoslog.open(path, create=True, durability=durability) as store:
    store.create_topic("t", config={"segment.bytes": 10 << 20})
    partition = engine_of(store).partition("t", 0)
    failing_calls.arm(path / "state" / "spare", "sync", 10**9, errno.EIO, again=False)
    assert partition.prepare_spare() == 1
    print(failing_calls.disarm()[0])
"""


@pytest.mark.parametrize(
    ("number", "again"),
    short_form(
        product([1, 2, 5, 14, 15, 16, 17, 18], [True, False]),
        *[(1, True), (1, False), (15, True), (16, False), (18, True)],
    ),
)
def test_what_cannot_be_written_is_stored_through_the_map(tmp_path, run, number, again):
    """One piece of the first batch, its end (15), its header (16), or one of a later batch; alone,
    or with all that follow.
    """
    assert int(run(APPEND, tmp_path / "store", number, again)) > 0


def test_what_is_written_is_read_again(tmp_path, run):
    assert run(APPEND, tmp_path / "store", 0, False) == ""


def test_a_spare_file_of_a_durable_store_is_synced_by_pieces(tmp_path, run):
    """Else the first sync of a batch in it would have all of it to wait for."""
    assert run(PREPARE, tmp_path / "durable", "commit") == "3\n"
    assert run(PREPARE, tmp_path / "other", "process") == "0\n"


@pytest.mark.parametrize("number, again", [(1, True), (2, False), (2, True), (4, False)])
def test_a_kernel_that_takes_no_sync_has_the_file_synced_as_before(tmp_path, run, number, again):
    """It has no queue (1), or takes not this sync."""
    said = run(MEANWHILE, tmp_path / "store", "queue", number, again)
    commits, hits, _ = said.split()
    assert commits == "6" and int(hits) > 0
    assert run(CHECK, tmp_path / "store") == "[0, 1, 2, 3, 4, 5]\n"


@pytest.mark.parametrize("refused", [True, False])
def test_what_the_kernel_does_not_take_is_synced_by_a_call(tmp_path, run, refused):
    """Each commit has one sync of the log, by whichever of the two."""
    assert run(REFUSED, tmp_path / "store", refused) == "[1, 1, 1, 1]\n"


def test_a_sync_made_meanwhile_that_fails_is_not_made_again(tmp_path, run):
    """The decision may be on the disk, and its data too."""
    said = run(MEANWHILE, tmp_path / "store", "sync", 2, False)
    error, outcome, commits, hits, resynced = said.split()
    assert (outcome, commits, hits, resynced) == ("unknown", "2", "1", "None"), error
    assert run(CHECK, tmp_path / "store") in ("[0, 1]\n", "[0, 1, 2]\n")
