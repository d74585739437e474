"""A store that is only read, beside processes that write to it, are killed, and begin again."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from harness.crew import Crew, Member
from harness.member_main import Hand
from read_only_stores import everything_shown, files_of, unchanged
from short_form import short_form
from staged_jobs import load

import eoslog
from eoslog import TopicPartition
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.errors import OffsetOutOfRangeError, StoreReopenedError
from eoslog.staging import job as staged_job
from eoslog.storage import log_opener
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of

TOPIC = "numbers"
PARTITIONS = 3
SEGMENT = {"segment.bytes": 1 << 14, "segment.index.bytes": 1 << 12, "index.interval.bytes": 500}
# Far below the time after which a call names the process that it waits for.
HELD_UP_S = 20.0
WHERE = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def overlaps(hand: Hand, name: str, seed: int, *, deletes: bool) -> None:
    """Write transactions that overlap, and records outside of any, until it is killed."""
    noise, store = random.Random(seed), hand.store
    producers = [store.producer(transactional_id=f"{name}-{number}") for number in range(4)]
    plain = store.producer()
    opened = set()
    for producer in producers:
        producer.init_transactions()
    count = 0
    while True:
        chance = noise.random()
        producer, partition = noise.choice(producers), noise.randrange(PARTITIONS)
        values = [
            b"%d %d" % (seed, count + number) + b" " * noise.choice((0, 30, 900))
            for number in range(noise.choice((1, 1, 3, 20)))
        ]
        if chance < 0.7:
            if producer not in opened:
                producer.begin_transaction()
                opened.add(producer)
            producer.append(TOPIC, partition=partition, values=values)
        elif chance < 0.8 and opened:
            ended = noise.choice(sorted(opened, key=producers.index))
            opened.discard(ended)
            (ended.commit_transaction if noise.random() < 0.6 else ended.abort_transaction)()
        elif chance < 0.95:
            plain.append(TOPIC, partition=partition, values=values)
        elif chance < 0.98:
            engine_of(store).partition(TOPIC, partition).roll()
        elif deletes:
            log = store.partition(TOPIC, partition)
            upto = noise.randint(log.log_start_offset, log.log_end_offset)
            with suppress(OffsetOutOfRangeError):  # Another writer deleted more.
                store.delete_records({TopicPartition(TOPIC, partition): upto})
        count += len(values)


class Tail:
    """A consumer of a store that is only read: all that it saw, by partition."""

    def __init__(self, store: eoslog.Store) -> None:
        self.consumer = store.consumer(isolation_level="read_committed")
        self.consumer.assign(WHERE)
        self.seen: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}

    def poll(self, timeout_s: float) -> int:
        records = self.consumer.poll(timeout_s)
        for one in records:
            self.seen[one.partition].append((one.offset, one.value))
        return len(records)


def truth(store: eoslog.Store) -> dict[int, list[tuple[int, bytes]]]:
    tail = Tail(store)
    while tail.poll(0.0):
        pass
    return tail.seen


def check(seen: list[tuple[int, bytes]], true: list[tuple[int, bytes]], *, deletes: bool) -> None:
    """Every record that was seen is committed; none was left out, but such as were deleted."""
    if not deletes:
        assert seen == true
        return
    assert [offset for offset, _ in seen] == sorted({offset for offset, _ in seen})
    left_from = true[0][0] if true else 0
    assert [one for one in seen if one[0] >= left_from] == [
        one for one in true if one[0] >= left_from
    ]


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("seed", short_form(range(40), 0, 1))
def test_what_was_read_is_what_was_committed(tmp_path, seed, deletes):
    """Writers are killed, all of them at times; others go on. The reader reads on beside them."""
    path = tmp_path / "store"
    noise = random.Random(seed)
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic(TOPIC, PARTITIONS, config=SEGMENT)
    with Crew(path, internal_segment_bytes=1 << 14) as crew:
        writers = {}

        def fill() -> None:
            for name in ("ann", "bob"):
                if name not in writers:
                    writers[name] = crew.join(name)
                    writers[name].begin(overlaps, name, noise.randrange(1 << 30), deletes=deletes)

        fill()
        with eoslog.open(path, read_only=True) as store:
            assert store.read_only
            tail = Tail(store)
            for _ in range(6):
                end_s = time.monotonic() + noise.random() * 0.3
                while time.monotonic() < end_s:
                    tail.poll(noise.choice((0.0, 0.01)))
                    if noise.random() < 0.02:
                        store.transactions()
                        store.groups()
                for name in noise.sample(sorted(writers), noise.randint(1, 2)):
                    writers.pop(name).kill()
                if noise.random() < 0.5:
                    tail.poll(0.01)
                fill()
            for member in writers.values():
                member.kill()
            with eoslog.open(path, durability="process") as after:
                true = truth(after)
                ends = {
                    where: engine_of(after).partition(*where).last_stable_offset for where in WHERE
                }
                deadline_s = time.monotonic() + 20
                while any(tail.consumer.position(where) < ends[where] for where in WHERE):
                    tail.poll(0.05)
                    assert time.monotonic() < deadline_s, (ends, tail.consumer.position(WHERE[0]))
            for number in range(PARTITIONS):
                check(tail.seen[number], true[number], deletes=deletes)
        crew.forget_the_dead()


def adopts_and_deletes(hand: Hand, first: int, seed: int) -> None:
    """Jobs whose files become segments, and single records, until it is killed; the oldest are
    deleted, and their files used again.
    """
    noise, store = random.Random(seed), hand.store
    staged_job.WHOLE_FILE_BYTES_MIN = 0
    producer, number = store.producer(), first
    while True:
        numbers = range(number, number + noise.choice((1, 7, 60)))
        values = [value_of(one) for one in numbers]
        if noise.random() < 0.5:
            load(store, "job", {(TOPIC, 0): values})
        else:
            producer.append(TOPIC, 0, values)
        number = numbers.stop
        log = store.partition(TOPIC, 0)
        if noise.random() < 0.3:
            upto = max(log.log_start_offset, log.log_end_offset - noise.randrange(300))
            store.delete_records({WHERE[0]: upto})
        hand.say("next")


def value_of(number: int) -> bytes:
    """Filler that no other number's record has in any place."""
    return b"%07d " % number * (1 + number % 100)


@pytest.mark.parametrize("seed", short_form(range(40), 0))
def test_files_that_are_adopted_and_used_again_under_a_reader(tmp_path, seed):
    """What a reader was given once stays what it was; it never sees another record's bytes."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "store"
    noise = random.Random(seed)
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic(TOPIC, config=SEGMENT)
    kept, count, last = [], 0, -1
    with Crew(path) as crew, ExitStack() as opened:
        crew.join("idle")
        reader = opened.enter_context(eoslog.open(path, read_only=True))
        consumer = reader.consumer(auto_offset_reset="earliest")
        consumer.assign(WHERE[:1])
        for life in range(3):
            writer = crew.join("ann")
            writer.begin(adopts_and_deletes, life * 1_000_000, noise.randrange(1 << 30))
            for _ in range(60):
                writer.hear("next")
                batch = consumer.poll_arrow(timeout=0.0)
                if batch is None or not len(batch):
                    continue
                values = batch.column("value").to_pylist()
                found = [int(value[:7]) for value in values]
                assert found == sorted(set(found))
                assert found[0] > last
                last, count = found[-1], count + len(found)
                kept.append((batch, values))
            writer.kill()
        for batch, values in kept:
            assert batch.column("value").to_pylist() == values
            assert values == [value_of(int(value[:7])) for value in values]
        assert count > 500
        crew.forget_the_dead()


def make_life(path: Path) -> eoslog.Store:
    """An open store with some of everything."""
    store = eoslog.open(path, create=True, durability="commit")
    store.create_topic(TOPIC, PARTITIONS, config=SEGMENT)
    store.create_topic("unused", 2)
    with store.producer() as plain:
        for partition in range(PARTITIONS):
            plain.append(
                TOPIC, partition=partition, values=[b"%d" % number for number in range(50)]
            )
    for number, commits in enumerate((True, False, None)):
        producer = store.producer(transactional_id=f"id-{number}")
        producer.init_transactions()
        producer.begin_transaction()
        producer.append(TOPIC, partition=number, values=[b"in a transaction"])
        producer.send_offsets_to_transaction({WHERE[number]: 7 + number}, f"group-{number}")
        if commits is not None:
            (producer.commit_transaction if commits else producer.abort_transaction)()
    return store


def test_beside_a_store_of_the_same_process(tmp_path):
    path = tmp_path / "store"
    with make_life(path) as writer, eoslog.open(path, read_only=True) as reader:
        assert everything_shown(reader) == everything_shown(writer)
        assert reader.processes() == writer.processes()
        assert writer.producer().append(TOPIC, partition=0, values=[b"later"]).record_count == 1
        writer.delete_topic("unused")
        writer.create_topic("unused", 1)
        assert writer.producer().append("unused", partition=0, values=[b"anew"]).record_count == 1
        writer.alter_topic(TOPIC, partitions=PARTITIONS + 1)
        assert everything_shown(reader) == everything_shown(writer)
    with eoslog.open(path, read_only=True) as closed, eoslog.open(path) as writer:
        assert closed.read_only
        assert not writer.read_only


def test_the_durability_is_that_of_those_who_write(tmp_path):
    path = tmp_path / "store"
    make_life(path).close()
    with eoslog.open(path, read_only=True) as reader:
        assert reader.durability == "commit"  # Which the store remembers.
        assert reader.processes() == []
    with (
        eoslog.open(path, durability="process") as writer,
        eoslog.open(path, read_only=True) as reader,
    ):
        assert reader.durability == "process"
        writer.producer().append(TOPIC, partition=0, values=[b"not synced"])
        log, own = reader.partition(TOPIC, 0), writer.partition(TOPIC, 0)
        assert log.high_watermark == own.log_end_offset
        writer.close()
        with eoslog.open(path, durability="always") as writer:
            writer.topics()
            assert reader.durability == "always"


def test_a_partition_that_no_process_has_opened_yet(tmp_path):
    """It is read as it was left, and then where a process has it open."""
    path = tmp_path / "store"
    make_life(path).close()
    with eoslog.open(path) as writer, eoslog.open(path, read_only=True) as reader:
        tail = Tail(reader)
        while tail.poll(0.0):
            pass
        assert {number: len(seen) for number, seen in tail.seen.items()} == {0: 51, 1: 50, 2: 50}
        for number in range(PARTITIONS):
            writer.producer().append(TOPIC, partition=number, values=[b"later"])
        deadline_s = time.monotonic() + 20
        while not all(seen[-1][1] == b"later" for seen in tail.seen.values()):
            tail.poll(0.05)
            assert time.monotonic() < deadline_s, tail.seen
        assert everything_shown(reader) == everything_shown(writer)


def stop(member: Member) -> None:
    """Stop it; it stands still on return."""
    member.signal(signal.SIGSTOP)
    while ") T " not in Path(f"/proc/{member.pid}/stat").read_text():
        time.sleep(0.001)


def test_nothing_in_the_store_is_changed(tmp_path):
    """A writer stands still, at whatever it does, while the store is read."""
    path = tmp_path / "store"
    make_life(path).close()
    with Crew(path, durability="commit") as crew:
        writer = crew.join()
        writer.begin(overlaps, "ann", 1, deletes=True)
        for _ in range(5):
            time.sleep(0.05)
            stop(writer)
            with unchanged(path), eoslog.open(path, read_only=True) as reader:
                everything_shown(reader)
                reader.snapshot()
                assert Tail(reader).poll(0.05) > 0
            writer.signal(signal.SIGCONT)
        writer.kill()


def reads(hand: Hand, path: str, seed: int) -> None:
    """Open it to be read, look at everything, and tail it for a while; again and again."""
    noise = random.Random(seed)
    while True:
        with suppress(StoreReopenedError), eoslog.open(path, read_only=True) as store:
            tail = Tail(store)
            hand.say("opened")
            for _ in range(noise.randrange(40)):
                tail.poll(0.002)
                store.groups()
                store.transactions()


@pytest.mark.parametrize("seed", short_form(range(10), 0))
def test_a_reader_that_stands_still_holds_nobody_up(tmp_path, seed):
    """Whatever it does when it is stopped; and it leaves nothing in the store when it is killed."""
    path, noise = tmp_path / "store", random.Random(seed)
    make_life(path).close()
    with Crew(path) as crew:
        reader = crew.hire("reader")
        reader.begin(reads, str(path), seed)
        reader.hear("opened")
        for number in range(15):
            time.sleep(noise.random() * 0.03)
            stop(reader)
            began_s = time.monotonic()
            with eoslog.open(path, durability="commit") as store:
                log = engine_of(store).partition(TOPIC, 0)
                with store.producer() as plain:
                    plain.append(TOPIC, partition=0, values=[b"%d" % number])
                log.roll()
                producer = store.producer(transactional_id="id-0")
                producer.init_transactions()
                with producer.transaction():
                    producer.append(TOPIC, partition=1, values=[b"x"])
                    producer.send_offsets_to_transaction({WHERE[1]: number}, "group-0")
                if noise.random() < 0.5:
                    store.delete_records({WHERE[0]: log.log_end_offset})
                store.delete_topic("unused")
                store.create_topic("unused", 2)
                store.flush()
            assert time.monotonic() - began_s < HELD_UP_S
            reader.signal(signal.SIGCONT)
            if noise.random() < 0.2:
                reader.kill()
                reader = crew.hire("reader")
                reader.begin(reads, str(path), noise.randrange(1 << 30))
                reader.hear("opened")
        before = files_of(path)
        reader.kill()
        assert files_of(path) == before
        assert not [one for one in reader.all_said if one.word == "failed"]


def test_what_compaction_deleted_before_it_was_read(tmp_path, monkeypatch):
    """The newest states stand further up: compaction wrote them again."""
    monkeypatch.setattr(log_opener, "_INTERNAL_ROLL_BYTES", 1 << 12)
    path, names = tmp_path / "store", [f"id-{number}" for number in range(5)]
    with eoslog.open(path, create=True, durability="process") as writer:
        writer.create_topic(TOPIC)

        def commit(count: int, *transactional_ids: str) -> None:
            for one in transactional_ids:
                with writer.producer(transactional_id=one) as producer:
                    producer.init_transactions()
                    for _ in range(count):
                        with producer.transaction():
                            producer.append(TOPIC, partition=0, values=[b"x"])

        commit(3, *names)
        with eoslog.open(path, read_only=True) as reader:
            assert len(reader.transactions()) == len(names)
            commit(100, *names)
            for log in parts_of(writer).files.partitions.opened():
                if log.topic == TRANSACTION_STATE_TOPIC:
                    compact_beyond(writer, log, 0)
            commit(2, *names[:3])
            assert reader.transactions() == writer.transactions()
            assert [epoch_of(reader, one) for one in names] == [
                epoch_of(writer, one) for one in names
            ]


def test_lmdb_is_copied_again_where_compaction_left_a_gap(tmp_path, monkeypatch):
    """A group's deletion went with the segments: it shows in the newer rows alone."""
    monkeypatch.setattr(log_opener, "_INTERNAL_ROLL_BYTES", 1 << 12)
    path, at = tmp_path / "store", WHERE[0]
    with eoslog.open(path, create=True, durability="process") as writer:
        writer.create_topic(TOPIC)
        writer.producer().append(TOPIC, partition=0, values=[b"x"] * 500)
        groups = parts_of(writer).files.group_offsets.log
        gone, *others = (f"group-{number}" for number in range(200))
        log = groups.of_group(gone).partition
        kept = next(one for one in others if groups.of_group(one).partition is log)
        consumers = {name: writer.consumer(name) for name in (gone, kept)}
        for consumer in consumers.values():
            consumer.assign([at])
            consumer.commit({at: 1})
        with eoslog.open(path, read_only=True) as reader:
            lmdb = parts_of(reader).files.lmdb
            copy, copied = lmdb.copied_from, []
            assert copy is not None
            monkeypatch.setattr(lmdb, "copied_from", lambda to: copied.append(to) or copy(to))
            assert reader.groups().keys() == {gone, kept}
            writer.delete_group(gone)
            deleted_at = log.log_end_offset
            for offset in range(400):
                consumers[kept].commit({at: offset})
            compact_beyond(writer, log, deleted_at)
            assert reader.groups() == writer.groups()
            assert reader.groups().keys() == {kept}
            assert copied
            assert everything_shown(reader) == everything_shown(writer)


def compact_beyond(store: eoslog.Store, log: UnifiedLog, offset: int) -> None:
    """Compact a log, here or in the background, where it is under way already."""
    deadline_s = time.monotonic() + 20
    while log.log_start_offset <= offset:
        parts_of(store).files.compact(log)
        assert time.monotonic() < deadline_s


def epoch_of(store: eoslog.Store, transactional_id: str) -> tuple[int, int]:
    found = store.describe_transaction(transactional_id)
    return found.producer_id, found.producer_epoch
