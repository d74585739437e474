"""The wall clock is set while a store works: nothing is lost, or deleted by its age.

A child with the library preloaded, so that the engine and Python see the same clock.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from background_work import do_background_work
from call_faults import failing_calls
from call_faults.standard_work import visible
from harness.crew import printed_by
from harness.waiting import eventually
from short_form import short_form
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ProducerFencedError
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import engine_of, parts_of

pytestmark = pytest.mark.crash

TOPIC, SOURCE, GROUP, APP = "orders", "source", "readers", "job"
PLACE = TopicPartition(TOPIC, 0)
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
JUMPS = {
    "ahead by an hour": lambda: HOUR_MS,
    "ahead by ten years": lambda: 10 * YEAR_MS,
    "ahead by two hundred years": lambda: 200 * YEAR_MS,
    "back by an hour": lambda: -HOUR_MS,
    "back by ten years": lambda: -10 * YEAR_MS,
    "to 1970": lambda: -(time.time_ns() // 1_000_000),
}
WEEK_MS = 7 * 24 * HOUR_MS
SETTINGS = QUIET | {
    "transaction.max.timeout.ms": HOUR_MS,
    "log.retention.ms": WEEK_MS,
    "offsets.retention.minutes": WEEK_MS // 60_000,
}


MAIN = "from call_faults import test_clocks; test_clocks.main(*given)"


@pytest.mark.parametrize("jump", short_form(JUMPS, "to 1970"))
def test_a_jump(tmp_path, run, jump):
    said = run(MAIN, tmp_path / "store", jump)
    assert said.split() == ["whole"]


def look_around(store: eoslog.Store) -> None:
    """Do what the background thread does by the wall clock."""
    checkpointer = parts_of(store).checkpointer
    do_background_work(store)
    assert checkpointer.metrics()["error_count"] == 0, checkpointer.metrics()["errors"]


class Life:
    """A store that goes on over any number of jumps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: list[bytes] = []
        self.moved_ms = 0
        self.store = eoslog.open(path, create=True, config=SETTINGS)
        self.store.create_topic(TOPIC, config={"segment.bytes": 4000})
        self.store.create_topic(SOURCE)

    def append(self, producer: eoslog.Producer) -> None:
        value = b"%d:" % len(self.values) + bytes(300)
        producer.append(TOPIC, partition=0, values=[value])
        self.values.append(value)

    def over(self, moved_ms: int) -> None:
        """Things are begun, the clock is set so far off, they go on."""
        store = self.store
        name = store.producer(name="name")
        plain = store.producer()
        for _ in range(20):
            self.append(name)
            self.append(plain)
        numbers = self.numbered()
        open_one = store.producer(transactional_id="pays", transaction_timeout_ms=60_000)
        open_one.init_transactions()
        open_one.begin_transaction()
        open_one.send_offsets_to_transaction({TopicPartition(SOURCE, 0): len(self.values)}, GROUP)
        self.append(open_one)
        held = self.values[-1]
        run_id, version = self.staged()
        lingering = store.producer(config={"linger.ms": 300})
        lingering.send(TOPIC, value=b"lingers", partition=0)
        waiting = store.consumer(group="waits")
        waiting.subscribe([TOPIC])
        waiting.poll(timeout=0)

        failing_calls.move_clock(moved_ms)
        is_late, self.moved_ms = moved_ms > self.moved_ms, moved_ms

        # It has not seen the clock be set.
        printed_by(
            MAIN,
            self.path,
            moved_ms,
        )
        look_around(store)
        eventually(lambda: b"lingers" in seen(store)[-1:], "what lingers was not appended")
        self.values.append(b"lingers")
        again = engine_of(store).partition(*PLACE).append_columns([b"sent again"], **numbers)
        assert again.duplicate, "a producer was forgotten"
        if is_late:
            self.values.remove(held)
            with pytest.raises(ProducerFencedError):
                open_one.commit_transaction()
        else:
            open_one.commit_transaction()
            assert store.groups()[GROUP][TopicPartition(SOURCE, 0)].offset
        assert store.commit_staged(APP, version, [self.message], run_id).committed
        self.values += self.staged_values
        for _ in range(20):
            self.append(name)
        self.times_out()
        look_around(store)
        waiting.poll(timeout=0)
        assert waiting.assignment() == [PLACE], "a member was taken for dead"
        waiting.close()
        for producer in (name, plain, open_one, lingering):
            producer.close()

    def numbered(self) -> dict[str, int]:
        """A batch of a producer id that nobody holds any more."""
        producer = self.store.producer()
        self.append(producer)
        producer.close()
        return {"producer_id": producer.producer_id, "producer_epoch": 0, "base_sequence": 0}

    def staged(self) -> tuple[str, int]:
        run_id = self.store.begin_run(APP)
        state = self.store.application(APP)
        version = 0 if state is None else state.version + 1
        writer = StagedWriter(self.path, APP, run_id, f"task-{version}", partitions={TOPIC: 1})
        self.staged_values = [b"staged:%d:%d" % (version, number) for number in range(3)]
        writer.append(TOPIC, 0, self.staged_values, None, None)
        self.message = writer.close()
        return run_id, version

    def times_out(self) -> None:
        """Transactions that are begun by the clock as it is now have their timeouts by it."""
        producers = []
        for name, timeout_ms in (("late", 200), ("in time", 60_000)):
            producer = self.store.producer(transactional_id=name, transaction_timeout_ms=timeout_ms)
            producer.init_transactions()
            producer.begin_transaction()
            producer.append(TOPIC, partition=0, values=[b"never"])
            producers.append(producer)
        time.sleep(0.3)
        look_around(self.store)
        assert self.store.describe_transaction("late").transaction_state == "CompleteAbort"
        assert self.store.describe_transaction("in time").transaction_state == "Ongoing"
        producers[1].abort_transaction()
        for producer in producers:
            producer.close()

    def check(self) -> None:
        assert visible(self.store, PLACE) == self.values
        assert self.store.verify() == []
        check_search_by_time(self.store)


def seen(store: eoslog.Store) -> list[bytes]:
    found: list[bytes] = []
    with store.consumer(isolation_level="read_uncommitted") as consumer:
        consumer.assign([PLACE])
        while records := consumer.poll(timeout=0, max_records=5000):
            found += [record.value or b"" for record in records]
    return found


def check_search_by_time(store: eoslog.Store) -> None:
    """The first record that is not before a time, by looking at all of them."""
    partition = store.partition(*PLACE)
    found: list[tuple[int, int]] = []
    with store.consumer(isolation_level="read_uncommitted") as consumer:
        consumer.assign([PLACE])
        while records := consumer.poll(timeout=0, max_records=5000):
            found += [(record.offset, record.timestamp_ms) for record in records]
    for target_ms in {moment + by for _, moment in found for by in (-1, 0, 1)}:
        expected = next((one for one in found if one[1] >= target_ms), None)
        assert partition.offset_for_timestamp(target_ms) == expected, target_ms


def come_and_go(path: str, moved_ms: int) -> None:
    """A process that opens the store after the clock was set, while others have it open."""
    failing_calls.move_clock(moved_ms)
    with eoslog.open(path, config=SETTINGS) as store:
        store.partition(*PLACE)
        do_background_work(store)


def main(path: str, jump: str) -> None:
    if jump not in JUMPS:
        come_and_go(path, int(jump))
        return
    life = Life(Path(path))
    there_ms = JUMPS[jump]()
    for moved_ms in (there_ms, 0):
        life.over(moved_ms)
        life.check()
        life.store.close()
        life.store = eoslog.open(life.path, config=SETTINGS)
        life.check()
    life.store.close()
    print("whole")
