"""`Store.explain_last_stable_offset`, `eoslog transactions explain`: who holds readers, and what
ends it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_calls import DONE, FAILED, assert_mistake, call
from harness.crew import Member
from harness.waiting import eventually
from staged_jobs import APP, leave_undone, no_room, stage_job

import eoslog
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.testing.killed_child import run_and_die

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
OPENED = "store = eoslog.open(path)\n"
QUIETLY = "from eoslog.store.store import parts_of\nparts_of(store).checkpointer.stop()\n"
BEGUN = (
    "producer = store.producer(transactional_id='a till', transaction_timeout_ms=timeout_ms)\n"
    "producer.init_transactions()\n"
    "producer.begin_transaction()\n"
    "producer.append('orders', 1, [b'1', b'2'])\n"
    "producer.flush()\n"
)


@pytest.fixture
def store(open_store):
    """A store with a record in each partition, where no background thread ends what is dead."""
    store = open_store()
    parts_of(store).checkpointer.stop()
    store.create_topic("orders", partitions=2)
    with store.producer() as producer:
        for partition in range(2):
            producer.send("orders", b"0", partition=partition)
    return store


def explained(store_path: Path, *options: object) -> list[str]:
    """The lines of the command, without the white space at their beginnings."""
    answer = call("transactions", "explain", "orders", *options, "--store", store_path)
    assert answer.status == DONE, answer
    return [" ".join(line.split()) for line in answer.stdout.splitlines()]


def run(command: str, store_path: Path) -> None:
    """Run a command in a process of its own: this one has the store open."""
    words = shlex.split(command.partition("eoslog ")[2])
    program = [sys.executable, "-m", "eoslog", "--store", str(store_path)]
    subprocess.run([*program, *words], check=True, capture_output=True)


def held(store_path: Path) -> eoslog.LastStableOffset:
    """The explanation of the partition that is held, to one that reads."""
    with eoslog.open(store_path, read_only=True) as reader:
        free, one = reader.explain_last_stable_offset("orders")
        assert (free.partition, free.cause, free.waiting_records) == (0, "none", 0)
        assert reader.explain_last_stable_offset("orders", 1) == [one]
    return one


def test_nothing_is_held(store, store_path):
    (one,) = store.explain_last_stable_offset("orders", 1)
    assert one == eoslog.LastStableOffset("orders", 1, 1, 1, 0)
    assert explained(store_path) == ["orders: nothing is open, all records can be read"]
    (line,) = explained(store_path, "--partition", 1)
    assert line.startswith("orders-1: nothing")


def test_an_open_transaction_of_a_process_that_lives_and_dies(store, store_path):
    with Member() as other:
        other.run(OPENED + BEGUN, path=str(store_path), timeout_ms=50_000)
        store.producer().append("orders", 1, [b"3"])
        second = store.producer(transactional_id="second")
        second.init_transactions()
        second.begin_transaction()
        second.append("orders", 1, [b"4"])
        second.flush()
        one = held(store_path)
        (own,) = store.explain_last_stable_offset("orders", 1)
        assert own == one
        assert (one.last_stable_offset, one.log_end_offset, one.waiting_records) == (1, 5, 4)
        assert (one.cause, one.transactional_id) == ("ongoing", "a till")
        assert (one.transaction_state, one.open_transactions) == ("Ongoing", 2)
        assert one.process is not None
        assert (one.process.process_id, one.process_is_alive) == (other.pid, True)
        assert one.start_ms is not None
        assert (one.timeout_ms, one.aborted_ms) == (50_000, one.start_ms + 50_000)
        lines = explained(store_path)
        assert lines[0] == "orders-1: the last stable offset is 1, the log end 5: 4 records wait"
        identity = f"producer id {one.producer_id}, epoch {one.producer_epoch}"
        assert lines[1] == f"transaction a till, {identity}, Ongoing"
        assert lines[3] == f"process {other.pid} on {os.uname().nodename}, alive"
        assert lines[4].startswith("then it is aborted at ")
        assert lines[4].endswith(", unless it ends before")
        assert lines[5] == "after it 1 transaction more"
        assert lines[6] == "to end it now eoslog transactions abort --transactional-id 'a till'"
        other.kill()
        one = held(store_path)
        assert (one.cause, one.process_is_alive) == ("ongoing", False)
        lines = explained(store_path)
        assert lines[3].endswith(", dead")
        assert lines[4] == "then a process that has the store open, or opens it next, aborts it"
        run(lines[-1], store_path)
    assert held(store_path).transactional_id == "second"


def test_a_transaction_whose_timeout_is_over(store, store_path):
    with Member() as other:
        other.run(OPENED + QUIETLY + BEGUN, path=str(store_path), timeout_ms=1)
        assert held(store_path).cause == "ongoing"
        then = "then its timeout is over: a process that has the store open aborts it"
        eventually(lambda: explained(store_path)[4] == f"{then} within seconds")


def test_a_prepared_transaction_is_held_while_no_process_is_there(store, store_path):
    producer = store.producer(transactional_id="batch")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"1", partition=1, timestamp_ms=NOON_MS)
    producer.prepare_transaction()
    assert held(store_path).process_is_alive
    store.close()
    one = held(store_path)
    assert (one.cause, one.process_is_alive, one.aborted_ms) == ("prepared", False, None)
    lines = explained(store_path)
    assert "process gone" in lines
    assert "then it waits for commit_prepared or abort_prepared, without a timeout" in lines
    assert lines[-1] == "to end it now eoslog transactions abort --transactional-id batch"
    (as_json,) = call(
        *("transactions", "explain", "orders", "--partition", 1, "--json", "--store", store_path)
    ).json
    assert as_json.pop("age_ms") >= 0
    assert as_json["then"] == "it waits for commit_prepared or abort_prepared, without a timeout"
    assert as_json["command"] == "eoslog transactions abort --transactional-id batch"
    assert as_json["waiting_records"] == 1
    assert "process_is_alive" not in as_json


def commit(path: str) -> None:
    with eoslog.open(path) as store:
        producer = store.producer(transactional_id="batch")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"1", partition=1)
        producer.commit_transaction()


def test_a_decided_transaction_without_its_marker(store, store_path):
    assert run_and_die("markers", commit, (str(store_path),), "fork", 60.0)
    one = held(store_path)
    assert (one.cause, one.transaction_state) == ("decided", "PrepareCommit")
    assert not one.process_is_alive
    lines = explained(store_path)
    assert lines[-1].startswith("then it is decided: a process that has the store open, ")


def test_a_transaction_of_no_transactional_id_hangs(store, store_path):
    engine_of(store).partition("orders", 1).append_columns(
        [b"hanging"],
        timestamp_ms=NOON_MS,
        producer_id=5,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    one = held(store_path)
    assert (one.cause, one.producer_id, one.producer_epoch) == ("hanging", 5, 3)
    assert (one.transactional_id, one.process, one.start_ms) == (None, None, NOON_MS)
    lines = explained(store_path)
    assert lines[1] == "transaction of no transactional id, producer id 5, epoch 3"
    assert lines[2].startswith("last written 2026-01-31T12:00:00.000Z, ")
    assert lines[3] == "then nothing ends it"
    command = "eoslog transactions abort --topic orders --partition 1 --start-offset 1"
    assert lines[4] == f"to end it now {command}"
    run(command, store_path)
    assert explained(store_path) == ["orders: nothing is open, all records can be read"]


def test_a_staged_job_that_is_not_complete(open_store, store_path):
    store = open_store()
    parts_of(store).checkpointer.stop()
    store.create_topic("orders", partitions=3)
    run_id = store.begin_run(APP)
    messages = stage_job(store_path, run_id, range(100))
    adopt, calls = UnifiedLog.adopt, iter(range(100))

    def full_after_two(*arguments: Any, **options: Any) -> Any:
        return no_room() if next(calls) >= 2 else adopt(*arguments, **options)

    leave_undone(store, UnifiedLog, "adopt", messages, refuse=full_after_two, run_id=run_id)
    found = [one for one in store.explain_last_stable_offset("orders") if one.waiting_records]
    assert {one.cause for one in found} == {"staged job"}
    assert {one.transactional_id for one in found} == {APP}
    assert {one.process.process_id for one in found if one.process is not None} == {os.getpid()}
    assert [one.last_stable_offset for one in found] == [0] * len(found)
    lines = explained(store_path)
    assert f"staged job of application {APP!r}" in lines
    assert "then its records are read once the job is complete" in lines
    abandon(store)


def test_an_unknown_place_is_a_failure(store, store_path):
    for words in (("oders",), ("orders", "--partition", 2)):
        answer = call("transactions", "explain", *words, "--store", store_path)
        assert_mistake(answer, FAILED, "orders" if len(words) > 1 else "oders")
    with pytest.raises(eoslog.errors.UnknownTopicOrPartitionError):
        store.explain_last_stable_offset("oders")
    with pytest.raises(TypeError):
        store.explain_last_stable_offset("orders", "0")
