"""The recorder: a line before each call and one after it, and what the wrapped clients write."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.fork import in_child

import eoslog
from eoslog import TopicPartition
from eoslog.checking import HistoryError, Recorder, check, recorded_producer
from eoslog.errors import (
    EoslogError,
    ForkedProcessError,
    LogClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from eoslog.store.store import engine_of

WHERE = TopicPartition("t", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("t", partitions=2)
        yield store


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "h.jsonl"


@pytest.fixture
def recorder(history: Path) -> Iterator[Recorder]:
    with Recorder(history) as recorder:
        yield recorder


def lines_of(history: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in history.read_text().splitlines()]


def last_lines(history: Path) -> list[dict[str, Any]]:
    last = {(line["client"], line["op"]): line for line in lines_of(history)}
    return list(last.values())


def test_a_call_is_unknown_until_it_ends(recorder: Recorder, history: Path) -> None:
    call = recorder.start("a", "send", topic="t", partition=0, value="v")
    (begun,) = lines_of(history)
    assert (begun["outcome"], begun["end_ns"]) == ("unknown", None)
    call.ok(offset=7)
    ended = lines_of(history)[1]
    assert ended == begun | {"outcome": "ok", "offset": 7, "end_ns": ended["end_ns"]}
    assert ended["end_ns"] >= begun["begin_ns"]
    recorder.start("a", "send", topic="t", partition=0, value="w").fail("refused")
    recorder.start("b", "send", topic="t", partition=0, value="x").unknown(OSError("gone"))
    assert [(one["client"], one["op"], one["outcome"]) for one in last_lines(history)] == [
        ("a", 0, "ok"),
        ("a", 1, "fail"),
        ("b", 0, "unknown"),
    ]
    assert check([history]).clean


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ProducerFencedError("x"), "fail"),
        (eoslog.errors.StoreFailedError("x"), "unknown"),
        (OSError("x"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
)
def test_an_error_is_a_failure_if_it_says_so(
    error: BaseException, outcome: str, recorder: Recorder, history: Path
) -> None:
    recorder.start("a", "commit", transaction="x").raised(error)
    assert last_lines(history)[0]["outcome"] == outcome
    assert type(error).__name__ in last_lines(history)[0]["error"]


def test_threads_write_whole_lines(recorder: Recorder, history: Path) -> None:
    def work(name: str) -> None:
        for number in range(200):
            recorder.start(name, "send", topic="t", value=f"{name}-{number}").ok()

    threads = [threading.Thread(target=work, args=(f"client-{one}",)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check([history]).counts == {
        "operations": 800,
        "clients": 4,
        "records_sent": 800,
        "records_read": 0,
        "records_of_nobody": 0,
        "transactions": 0,
    }


def test_a_recorder_is_of_one_process_and_ends(history: Path) -> None:
    recorder = Recorder(history)

    def use() -> None:
        with pytest.raises(ForkedProcessError):
            recorder.start("a", "init", transactional_id="x")

    in_child(use)
    recorder.close()
    recorder.close()
    with pytest.raises(LogClosedError):
        recorder.start("a", "init", transactional_id="x")
    assert history.stat().st_size == 0


def test_a_fork_beside_a_thread_that_writes_does_not_hang(history: Path) -> None:
    writes, ends = threading.Event(), threading.Event()
    write = os.write

    def slow(*line: Any) -> int:
        writes.set()
        ends.wait()
        return write(*line)

    def use() -> None:
        with pytest.raises(ForkedProcessError), recorder:
            recorder.start("a", "init", transactional_id="x")
        with pytest.raises(ForkedProcessError):
            recorder.consumer(None)  # type: ignore[arg-type]

    recorder = Recorder(history)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "write", slow)
        writer = threading.Thread(
            target=lambda: recorder.start("b", "init", transactional_id="y").ok()
        )
        writer.start()
        writes.wait()
    try:
        in_child(use, seconds=20)
    finally:
        ends.set()
        writer.join()
    recorder.close()
    assert [one["outcome"] for one in lines_of(history)] == ["unknown", "ok"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no room"), KeyboardInterrupt()])
def test_a_line_that_could_not_be_written_leaves_nothing(
    recorder: Recorder, history: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    call = recorder.start("a", "init", transactional_id="x")
    write, before = os.write, history.read_bytes()

    def refuse(file: int, data: bytes) -> int:
        if history.read_bytes() != before:
            raise error
        return write(file, data[:10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        with pytest.raises(type(error)):
            call.ok()
    assert history.read_bytes() == before
    recorder.start("a", "init", transactional_id="x").ok()
    assert [one["outcome"] for one in last_lines(history)] == ["unknown", "ok"]


def test_what_is_gathered_is_flushed_once_it_is_much(
    store: eoslog.Store, recorder: Recorder, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_producer, "GATHERED_MAX", 10)
    producer = recorder.producer(store.producer(config={"linger.ms": 3_600_000}), client="p")
    for number in range(25):
        producer.send("t", b"%d" % number, partition=0)
    assert [one["outcome"] for one in last_lines(history)] == ["ok"] * 20 + ["unknown"] * 5
    assert store.partition("t", 0).log_end_offset == 20
    producer.close()
    assert {one["outcome"] for one in last_lines(history)} == {"ok"}


def test_values_are_texts_or_digests(recorder: Recorder) -> None:
    assert recorder.identity(None, b"text") == "text"
    assert str(recorder.identity(None, b"\xff")).startswith("blake2b:")
    assert recorder.identity(None, b"x" * 101) != recorder.identity(None, b"x" * 102)
    assert len(str(recorder.identity(None, b"x" * 10_000))) < 60
    with pytest.raises(ValueError, match="identify"):
        recorder.identity(b"key", None)


def test_a_plain_send_is_acknowledged_by_the_flush(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    producer = recorder.producer(store.producer(), client="p")
    producer.send("t", b"one", partition=0)
    assert last_lines(history)[0]["outcome"] == "unknown"
    producer.flush()
    producer.append("t", 1, np.array([b"two", b"six"], dtype="S3"))
    producer.send("t", b"three")
    producer.close()
    found = [(one["outcome"], one.get("offset"), one["partition"]) for one in last_lines(history)]
    assert found == [("ok", None, 0), ("ok", 0, 1), ("ok", None, None)]
    assert lines_of(history)[-1]["producer_id"] >= 0


def test_tables_and_streams_are_recorded_by_their_values(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"key": ["k", None], "value": [b"one", b"two"]})
    producer = recorder.producer(store.producer(), client="p")
    producer.append("t", 0, table)
    producer.append("t", 0, pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))
    producer.append("t", 1, pa.chunked_array([["three"], ["four"]]))
    found = [(one["outcome"], one["offset"], one["values"]) for one in last_lines(history)]
    assert found == [
        ("ok", 0, ["one", "two"]),
        ("ok", 2, ["one", "two"]),
        ("ok", 0, ["three", "four"]),
    ]
    assert store.partition("t", 0).log_end_offset == 4


@pytest.mark.parametrize("end", ["flush", "close"])
def test_what_a_flush_could_not_append_no_later_call_acknowledges(
    store: eoslog.Store, recorder: Recorder, history: Path, end: str
) -> None:
    store.create_topic("gone")
    producer = recorder.producer(store.producer(config={"linger.ms": 3_600_000}), client="p")
    producer.send("gone", b"lost", partition=0)
    producer.send("t", b"kept", partition=0)
    store.delete_topic("gone")
    with pytest.raises(EoslogError):
        getattr(producer, end)()
    with suppress(EoslogError):
        getattr(producer, end)()
    assert [one["outcome"] for one in last_lines(history)] == ["unknown", "unknown"]


def test_records_of_a_poll_that_could_not_be_named_are_not_missed(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    producer = recorder.producer(store.producer())
    producer.append("t", 0, [b"one"])
    producer.producer.append("t", 0, values=[None], keys=[b"not recorded, and without a value"])
    consumer = recorder.consumer(store.consumer())
    consumer.assign([WHERE])
    with pytest.raises(ValueError, match="value"):
        consumer.poll(0)
    producer.append("t", 0, [b"two"])
    assert [record.value for record in consumer.poll(0)] == [b"two"]
    assert check([history]).anomalies == []


def test_two_processes_by_the_name_of_one_client_are_noticed(
    store: eoslog.Store, tmp_path: Path
) -> None:
    for number in (1, 2):
        with Recorder(tmp_path / f"{number}.jsonl") as recorder:
            recorder.producer(store.producer(), client="p").append("t", 0, [b"%d" % number])
    with pytest.raises(HistoryError, match="by the name of one client"):
        check([tmp_path / "1.jsonl", tmp_path / "2.jsonl"])


def test_a_loop_is_recorded_with_its_inputs(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    with store.producer() as given:
        given.append("t", partition=0, values=[b"a", b"b"])
    producer = recorder.producer(store.producer(transactional_id="x"), client="p")
    consumer = recorder.consumer(store.consumer("g", isolation_level="read_committed"), client="c")
    producer.init_transactions()
    consumer.assign([WHERE])
    records = consumer.poll(0)
    with producer.transaction([consumer]) as name:
        for record in records:
            producer.send("t", (record.value or b"") + b"!", partition=1)
        producer.send_offsets_to_transaction({WHERE: consumer.position(WHERE)}, "g")
    with pytest.raises(ArithmeticError), producer.transaction():
        raise ArithmeticError
    assert consumer.committed([WHERE]) == {WHERE: 2}
    consumer.commit({WHERE: 1})
    assert consumer.end_offsets([WHERE]) == {WHERE: 2}
    found = last_lines(history)
    assert [(one["kind"], one["outcome"]) for one in found] == [
        ("init", "ok"),
        ("seek", "ok"),
        ("poll", "ok"),
        ("send", "ok"),
        ("send", "ok"),
        ("offsets", "ok"),
        ("commit", "ok"),
        ("abort", "ok"),
        ("committed", "ok"),
        ("offsets", "ok"),
        ("ends", "ok"),
    ]
    assert found[2]["records"] == {"t-0": [[0, "a"], [1, "b"]]}
    assert found[2]["next"] == {"t-0": 2}
    assert {one["transaction"] for one in found[2:7]} == {name}
    assert found[7]["transaction"] != name
    assert found[0]["producer_epoch"] <= found[3]["producer_epoch"]
    assert check([history], visible_within_s=0).clean


def test_a_fenced_producer_is_recorded_as_refused(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    old = recorder.producer(store.producer(transactional_id="x"), client="old")
    old.init_transactions()
    old.begin_transaction()
    old.append("t", 0, [b"lost"])
    new = recorder.producer(store.producer(transactional_id="x"), client="new")
    new.init_transactions()
    with pytest.raises(EoslogError):
        old.commit_transaction()
    (commit,) = [one for one in last_lines(history) if one["kind"] == "commit"]
    assert commit["outcome"] == "fail"
    assert check([history], visible_within_s=0).clean


@pytest.mark.parametrize("start", ["assign", "seek_to_beginning"])
@pytest.mark.parametrize("lost", [0, 1])
def test_the_first_record_is_missed_where_a_reader_began(
    lost: int, start: str, tmp_path: Path, recorder: Recorder, history: Path
) -> None:
    with eoslog.open(tmp_path / "small", create=True, durability="process") as store:
        store.create_topic("t", partitions=1)
        producer = recorder.producer(store.producer())
        producer.append("t", 0, [b"0", b"1", b"2"])
        reader = recorder.consumer(store.consumer())
        reader.assign([WHERE])
        if start == "seek_to_beginning":
            reader.poll(0)
            reader.seek_to_beginning()
        reader.poll(0)
    assert check([history], visible_within_s=0).clean
    lines = lines_of(history)
    for line in lines:
        for given in line.get("records", {}).values():
            assert given.pop(lost) == [lost, str(lost)]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = check([history], visible_within_s=0).found
    assert [(one.kind, one.count) for one in found if one.count] == [("lost write", 1)]


def move(consumer: Any, how: str, reader: Recorder, store: eoslog.Store) -> Any:
    """Have its position in the second partition behind the end of the log."""
    second = TopicPartition("t", 1)
    if how == "seek":
        consumer.seek(second, 50)
        return consumer
    consumer.commit({WHERE: 1, second: 50})
    if how == "seek_to_committed":
        consumer.seek_to_committed()
        return consumer
    consumer.close()
    successor = reader.consumer(store.consumer(group="g"))
    if how == "assign":
        successor.assign([WHERE, second])
    else:
        successor.subscribe(["t"])
    return successor


@pytest.mark.parametrize("how", ["seek", "seek_to_committed", "assign", "subscribe"])
def test_a_poll_that_did_not_look_behind_the_end_says_nothing_of_it(
    store: eoslog.Store, recorder: Recorder, history: Path, how: str
) -> None:
    """The next one goes back to the beginning, and is told nothing twice."""
    producer = recorder.producer(store.producer())
    for number in range(2):
        producer.append("t", number, [b"%d-0" % number, b"%d-1" % number])
    consumer = recorder.consumer(store.consumer(group="g"))
    consumer.assign([WHERE, TopicPartition("t", 1)])
    consumer.poll(0)
    consumer = move(consumer, how, recorder, store)
    producer.append("t", 0, [b"0-2"])
    values: list[bytes] = []
    for _ in range(50):
        values += [one.value for one in consumer.poll(0.1, max_records=1)]
        if {b"1-0", b"1-1"} <= set(values):
            break
    assert {b"1-0", b"1-1"} <= set(values)
    for line in lines_of(history):
        assert line.get("next", {}).get("t-1", 0) <= 2
    report = check([history], visible_within_s=0)
    assert report.clean, "\n".join(report.lines())


def test_a_reset_by_retention_is_a_seek(tmp_path: Path, recorder: Recorder, history: Path) -> None:
    """The records in between were deleted: nobody skipped them."""
    config = {"segment.bytes": 4096}
    with eoslog.open(tmp_path / "small", create=True, durability="process") as store:
        store.create_topic("t", partitions=1, config=config)
        producer = recorder.producer(store.producer())
        everything = recorder.consumer(store.consumer())
        behind = recorder.consumer(store.consumer())
        for reader in (everything, behind):
            reader.assign([WHERE])
            reader.seek_to_beginning()
            reader.poll(0)
        for number in range(100):
            producer.append("t", 0, [b"%d" % number + b"x" * 500])
            everything.poll(0)
        engine_of(store).partition("t", 0).delete_segments(60)
        assert everything.consumer.beginning_offsets([WHERE])[WHERE] > 0
        while behind.poll(0):
            pass
    report = check([history], visible_within_s=0)
    assert report.clean, "\n".join(report.lines())


def test_a_subscribed_consumer_records_its_rebalances(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    heard: list[Any] = []
    first = recorder.consumer(store.consumer("g"), client="first")
    first.subscribe(["t"], on_assigned=lambda who, given: heard.append((who, given)))
    with store.producer() as producer:
        producer.append("t", partition=0, values=[b"a"])
        producer.append("t", partition=1, values=[b"b"])
    assert len(first.poll(0.1)) + len(first.poll(0.1)) == 2
    assert heard[0][0] is first
    second = recorder.consumer(store.consumer("g"), client="second")
    second.subscribe(["t"])
    for _ in range(10):
        first.poll(0.02)
        second.poll(0.02)
    seeks = [one for one in last_lines(history) if one["kind"] == "seek"]
    assert {one["client"] for one in seeks} == {"first", "second"}
    first.close()
    second.close()
    assert check([history], visible_within_s=0).clean


def test_an_end_that_readers_are_held_at_is_no_end(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    """While a staged job is added, others append behind the end that readers are told."""
    held = engine_of(store).partition("t", 0)
    both = [WHERE, TopicPartition("t", 1)]
    consumer = recorder.consumer(store.consumer(isolation_level="read_uncommitted"))
    with recorder.producer(store.producer()) as producer:
        held.hold_readers()
        producer.append("t", 0, [b"a", b"b"])
        assert consumer.end_offsets(both) == dict.fromkeys(both, 0)
        assert check([history]).clean
        held.release_readers()
        assert consumer.end_offsets(iter(both)) == {WHERE: 2, both[1]: 0}
    ends = [line["offsets"] for line in last_lines(history) if line["kind"] == "ends"]
    assert ends == [{"t-0": 2, "t-1": 0}]
    consumer.close()
    with pytest.raises(EoslogError):
        consumer.end_offsets(both)


def ends_of(history: Path) -> list[tuple[str, str]]:
    """Of each end of a transaction, in order: what it was, and what became of it."""
    return [
        (line["kind"], line["outcome"])
        for line in last_lines(history)
        if line["kind"] in ("commit", "abort")
    ]


def test_a_block_is_as_the_producers_own(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    producer = recorder.producer(store.producer(transactional_id="x"))
    producer.init_transactions()
    with producer.transaction():
        producer.append("t", 0, [b"whole"])
    with pytest.raises(ValueError, match="inside"), producer.transaction():
        producer.append("t", 0, [b"left"])
        raise ValueError("inside")
    with producer.transaction():
        producer.append("t", 0, [b"ended inside"])
        producer.abort_transaction()
    with pytest.raises(RecordTooLargeError), producer.transaction():
        producer.append("t", 0, [bytes(2_000_000)])
    with (
        pytest.raises(TransactionAbortableError),
        producer.transaction(),
        suppress(RecordTooLargeError),
    ):
        producer.append("t", 0, [bytes(2_000_000)])
    with producer.transaction():
        producer.append("t", 0, [b"last"])
    assert ends_of(history) == [
        ("commit", "ok"),
        ("abort", "ok"),
        ("abort", "ok"),
        ("abort", "ok"),
        ("commit", "fail"),
        ("abort", "ok"),
        ("commit", "ok"),
    ]


def test_an_abort_that_fails_does_not_hide_why(
    store: eoslog.Store, recorder: Recorder, history: Path
) -> None:
    producer = recorder.producer(store.producer(transactional_id="x"))
    producer.init_transactions()
    with pytest.raises(ValueError, match="inside") as caught, producer.transaction():
        store.producer(transactional_id="x").init_transactions()
        raise ValueError("inside")
    (note,) = caught.value.__notes__
    assert note.startswith("aborting the transaction failed too: ")
    assert ends_of(history) == [("abort", "fail")]


def test_a_block_whose_commit_was_cut_before_it_began_is_aborted(
    store: eoslog.Store, recorder: Recorder, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = recorder.producer(store.producer(transactional_id="x"))
    producer.init_transactions()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), producer.transaction():
        producer.append("t", 0, [b"left"])
        monkeypatch.setattr(producer.producer, "commit_transaction", interrupted)
    monkeypatch.undo()
    with producer.transaction():
        producer.append("t", 0, [b"next"])
    assert ends_of(history)[1:] == [("abort", "ok"), ("commit", "ok")]
