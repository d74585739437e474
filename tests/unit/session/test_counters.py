"""Counts of a store's events, over all its processes, living and dead."""

from __future__ import annotations

import errno
import logging
import os
import threading

import pytest
from harness.crew import Member
from harness.waiting import eventually

import eoslog
from eoslog.bindings import counter_page
from eoslog.bindings.counter_page import NUMBERS, CounterPage, read_counters
from eoslog.bindings.shared_page import LOCK_COUNTERS, SESSION_BYTES, SharedPage
from eoslog.errors import StoreFullError
from eoslog.session import counters as module
from eoslog.session.counters import StoreCounters, read_counts
from eoslog.session.process_slots import ProcessSlots
from eoslog.store.store import abandon

SESSION = bytes(range(SESSION_BYTES))


@pytest.fixture
def state(tmp_path):
    SharedPage(str(tmp_path / "shared"), SESSION, create=True)
    return tmp_path


def process(state):
    """The counters of another process; they hold a slot as one would."""
    shared = SharedPage(str(state / "shared"), SESSION, create=False)
    return StoreCounters(state, ProcessSlots(state, SESSION), shared)


def die(counters):
    counters.slots.release()


def counts(path):
    return dict(read_counts(path / "state").counts)


def files(state):
    return sorted(path.name for path in (state / "metrics").iterdir())


def test_a_page_keeps_what_all_threads_counted(tmp_path):
    path = tmp_path / "page"
    page = CounterPage(str(path))
    threads = [
        threading.Thread(target=lambda: [page.add("rebalances", 2) for _ in range(10_000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert page.read() == read_counters(str(path)) == {"rebalances": 80_000}
    with pytest.raises(ValueError, match="does not fall"):
        page.add("rebalances", -1)
    with pytest.raises(KeyError):
        page.add("no such counter")
    page.close()
    page.add("rebalances")  # A thread may come late: it counts nowhere.
    assert read_counters(str(path)) == {"rebalances": 80_000}


def test_each_name_has_a_number_of_its_own():
    assert len(set(NUMBERS.values())) == len(NUMBERS)
    assert NUMBERS["duplicate_batches"] == 0
    assert counter_page.DURATION_BOUNDS_S[0] == 0.00005
    assert NUMBERS["log_syncs_2500000us"] == 32 + len(counter_page.DURATION_BOUNDS_S) - 1


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"x" * 4096, b"x" * 100])
def test_a_page_that_was_not_made_whole_counts_nothing(tmp_path, content):
    path = tmp_path / "page"
    path.write_bytes(content)
    assert read_counters(str(path)) == {}


def test_the_dead_are_folded_once(state):
    first, second, third = (process(state) for _ in range(3))
    first.begin()
    for counters, count in ((first, 1), (second, 10), (third, 100)):
        counters.add("rebalances", count)
    die(second)
    third.fold_dead(sync=False)
    third.fold_dead(sync=True)
    assert first.totals() == third.totals()
    assert first.totals().counts == {"rebalances": 111}
    first.close(sync=False)
    first.close(sync=False)
    third.close(sync=False)
    assert read_counts(state).counts == {"rebalances": 111}
    assert files(state) == ["totals.json"]


def test_a_page_that_stays_after_it_was_folded_is_not_added_again(state, monkeypatch):
    first, second = process(state), process(state)
    first.begin()
    second.add("rebalances", 10)
    page = state / "metrics" / second.slots.own.hex()
    content = page.read_bytes()
    die(second)
    first.fold_dead(sync=False)
    page.write_bytes(content)  # As a death before its removal leaves it.
    assert read_counts(state).counts == {"rebalances": 10}
    first.add("rebalances")
    first.close(sync=False)
    assert read_counts(state).counts == {"rebalances": 11}
    assert files(state) == ["totals.json"]


def test_a_look_takes_no_lock_and_writes_nothing(state):
    counters = process(state)
    counters.begin()
    counters.add("rebalances")
    counted = state / "metrics"
    before = {path: path.stat().st_mtime_ns for path in (counted, *counted.iterdir())}
    with SharedPage(str(state / "shared"), SESSION, create=False).held(LOCK_COUNTERS):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(read_counts(state).counts))
        thread.start()
        thread.join(60)
    assert seen == [{"rebalances": 1}]
    assert {path: path.stat().st_mtime_ns for path in (counted, *counted.iterdir())} == before
    assert read_counts(state / "no store").counts == {}


def test_a_look_between_any_two_folds_is_exact(state):
    """Processes come and die while others look: none sees a page twice, or not at all."""
    keeper = process(state)
    keeper.begin()
    of_each: list[list[int]] = [[], []]
    ended = threading.Event()

    def look(seen):
        while not ended.is_set():
            seen.append(read_counts(state).counts.get("rebalances", 0))

    threads = [threading.Thread(target=look, args=(seen,)) for seen in of_each]
    for thread in threads:
        thread.start()
    for number in range(200):
        other = process(state)
        before = keeper.totals().counts.get("rebalances", 0)
        assert before == 1000 * number
        other.add("rebalances", 1000)
        if number % 2:
            die(other)
            keeper.fold_dead(sync=False)
        else:
            other.close(sync=False)
            die(other)
    ended.set()
    for thread in threads:
        thread.join()
    for seen in of_each:
        assert seen == sorted(seen)
        assert {count % 1000 for count in seen} == {0}
    assert keeper.totals().counts == {"rebalances": 200_000}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": 1}', b"\xff" * 100, None])
def test_damaged_totals_begin_again_with_a_line(tmp_path, caplog, content):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        with store.producer(transactional_id="a") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"x")
            producer.commit_transaction()
    assert counts(path)["transactions_committed"] == 1
    since_ms = read_counts(path / "state").since_ms
    totals = path / "state" / "metrics" / "totals.json"
    if content is None:
        text = totals.read_bytes()
        totals.write_bytes(
            text.replace(b'"transactions_committed": 1', b'"transactions_committed": 9')
        )
    else:
        totals.write_bytes(content)
    assert read_counts(path / "state").since_ms is None
    with eoslog.open(path):
        pass
    assert any("counts begin again" in one.message for one in caplog.records)
    assert "transactions_committed" not in counts(path)
    assert read_counts(path / "state").since_ms >= since_ms


def test_lost_totals_begin_again(tmp_path, caplog):
    path = tmp_path / "store"
    caplog.set_level(logging.INFO)
    eoslog.open(path, create=True).close()
    caplog.clear()
    totals = path / "state" / "metrics" / "totals.json"
    totals.unlink()
    eoslog.open(path).close()
    assert any("counts begin" in one.message for one in caplog.records)
    assert totals.exists()


def test_without_room_for_a_page_a_close_still_counts(state, monkeypatch, caplog):
    monkeypatch.setattr(
        module,
        "CounterPage",
        lambda path=None: CounterPage() if path is None else raise_full(path),
    )
    counters = process(state)
    assert "is lost if it is killed" in caplog.text
    counters.add("rebalances", 3)
    assert counters.totals().counts == {"rebalances": 3}
    counters.begin()
    counters.close(sync=False)
    assert read_counts(state).counts == {"rebalances": 3}


def raise_full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_what_cannot_be_folded_now_is_folded_later(state, monkeypatch, caplog):
    first = process(state)
    first.begin()
    first.add("rebalances", 3)
    with monkeypatch.context() as patch:

        def refuse(path, content, *, sync):
            raise StoreFullError(f"writing {path}")

        patch.setattr(module, "write_aside", refuse)
        first.close(sync=False)
    assert "not folded now" in caplog.text
    die(first)
    assert read_counts(state).counts == {"rebalances": 3}
    process(state).fold_dead(sync=False)
    assert read_counts(state).counts == {"rebalances": 3}
    assert len(files(state)) == 2


def test_processes_and_threads_and_a_kill(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t")
        with Member() as killed, Member() as closed:
            for member in (killed, closed):
                member.run("import eoslog, threading; store = eoslog.open(path)", path=str(path))
                member.run(
                    "def work(number):\n"
                    "    with store.producer(transactional_id=number) as one:\n"
                    "        one.init_transactions()\n"
                    "        for turn in range(20):\n"
                    "            one.begin_transaction(); one.send('t', b'x'); one.flush()\n"
                    "            aborts = turn % 4 == 0\n"
                    "            one.abort_transaction() if aborts else one.commit_transaction()\n"
                    "import os\n"
                )
                member.run(
                    "def work_of(number): work(f'{os.getpid()}-{number}')\n"
                    "threads = [threading.Thread(target=work_of, args=(n,)) for n in range(3)]\n"
                    "[one.start() for one in threads]; [one.join() for one in threads]"
                )
            expected = {"transactions_committed": 90, "transactions_aborted": 30}

            def found():
                return {name: counts(path).get(name) for name in expected}

            assert found() == expected
            killed.kill()
            assert found() == expected
            closed.run("store.close()")
            eventually(lambda: len(list((path / "state" / "metrics").iterdir())) == 2)
            assert found() == expected
    assert found() == expected


def test_a_killed_process_is_folded_by_the_next_opening(tmp_path):
    path = tmp_path / "store"
    store = eoslog.open(path, create=True)
    store.create_topic("t")
    partition = store.partition("t", 0)
    producer = store.producer()
    producer.append("t", 0, values=[b"x"])
    batch = bytes(partition.read(0, 1 << 20))
    first = bytes(8) + batch[8:]
    for _ in range(3):
        assert partition.append_batch(first).duplicate
    abandon(store)
    assert counts(path)["duplicate_batches"] == counts(path)["duplicate_records"] == 3
    with eoslog.open(path):
        pass
    assert counts(path)["duplicate_batches"] == 3
    assert counts(path)["partitions_recovered"] >= 1
