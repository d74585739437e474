"""What the members of the kill loop do until they are killed, and what they say of it.

Every value says whose it is: `lane:number:index:attempt:padding`. An attempt is one try of one
process, so that a record of an aborted one is told from that of the try that was committed.

- `transactions`: a transactional id. Its transaction of a number writes the same records in every
  life, over one to three partitions of `events`, with the group's offset behind the number; the
  number it does next is what the offset says. Some it aborts, some it prepares before.
- `loads`: the same by an application's staged jobs. Some it gives up.
- `named`: a producer with a name, which asks where it is.
- `plain`: a producer without one.
- `copies`: the read-process-write loop over one partition of `events`, to the same of `copies`.
- `shares`: the same by members of a group, who share the partitions of `events` among them, to
  those of `shares`.
- `watches`: a reader of everything, committed or not; it says what it saw.
- `operates`: looks at transactions and snapshots, takes over ids, makes and deletes topics.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from contextlib import suppress
from typing import Any

from harness.member_main import Hand

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    ConcurrentTransactionsError,
    EoslogError,
    InvalidProducerEpochError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StagedCommitError,
    StagedRunFencedError,
    StoreReopenedError,
    TopicAlreadyExistsError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.store.process_loop import next_offsets

EVENTS, COPIES, SHARES, LANES = "events", "copies", "shares", "lanes"
WRITTEN = (EVENTS, COPIES, SHARES)
PARTITIONS = 3
NUMBERS_GROUP, COPIES_GROUP, MEMBERS_GROUP = "numbers", "copies", "members"
FENCED = (ProducerFencedError, InvalidProducerEpochError)
# So long one number waits for its next: kills are to fall into different work, not into the most.
PAUSE_S = 0.001


def attempt_id() -> str:
    return os.urandom(4).hex()


def records_at(lane: str, number: int) -> dict[int, list[str]]:
    """What a lane's transaction of a number writes to each partition: the same in every life."""
    noise = random.Random(f"{lane} {number}")
    values: dict[int, list[str]] = {}
    for partition in sorted(noise.sample(range(PARTITIONS), noise.randint(1, PARTITIONS))):
        count = noise.choice((1, 1, 2, 5, 20))
        values[partition] = [f"{lane}:{number}:{index}" for index in range(count)]
    return values


def number_at(lane_number: int) -> TopicPartition:
    """Where the group's offset of a lane is: a partition of a topic that holds nothing."""
    return TopicPartition(LANES, lane_number)


def next_number(hand: Hand, lane_number: int) -> int:
    with hand.store.consumer(NUMBERS_GROUP) as consumer:
        return consumer.committed(number_at(lane_number)) or 0


def values_of(ones: list[str], attempt: str) -> list[bytes]:
    return [f"{one}:{attempt}:{'x' * (len(one) * 7)}".encode() for one in ones]


def transactions(hand: Hand, lane: str, lane_number: int, seed: int) -> None:
    """A transactional id, for ever; another process may have it, and is fenced then."""
    noise = random.Random(seed)
    while True:
        timeout_ms = 60 if noise.random() < 0.1 else 60_000
        producer = hand.store.producer(transactional_id=lane, transaction_timeout_ms=timeout_ms)
        try:
            prepared = producer.init_transactions(noise.random() < 0.5)
            if prepared is not None:
                hand.say("kept", lane)
                producer.complete_transaction(prepared if noise.random() < 0.5 else None)
            while noise.random() < 0.95:
                one_transaction(hand, producer, lane, lane_number, noise)
        except FENCED:
            hand.say("fenced", lane)
        except (ConcurrentTransactionsError, UnstableOffsetCommitError):
            hand.say("again", lane)
        if noise.random() < 0.5:
            with suppress(*FENCED, ConcurrentTransactionsError):
                producer.close()


def one_transaction(
    hand: Hand, producer: eoslog.Producer, lane: str, lane_number: int, noise: random.Random
) -> None:
    number, attempt = next_number(hand, lane_number), attempt_id()
    producer.begin_transaction()
    hand.say("try", lane, number, attempt)
    steps = [(partition, ones) for partition, ones in records_at(lane, number).items()]
    offsets_at = noise.randrange(len(steps) + 1)
    for step in range(len(steps) + 1):
        if step == offsets_at:
            offsets = {number_at(lane_number): number + 1}
            producer.send_offsets_to_transaction(offsets, NUMBERS_GROUP)
        if step < len(steps):
            partition, ones = steps[step]
            values = values_of(ones, attempt)
            if noise.random() < 0.5:
                producer.append(EVENTS, partition=partition, values=values)
            else:
                for value in values:
                    producer.send(EVENTS, value=value, partition=partition)
            if noise.random() < 0.2:
                producer.flush()
    if noise.random() < 0.02:
        time.sleep(0.1)
    prepared = noise.random() < 0.05
    if prepared:
        producer.prepare_transaction()
        hand.say("prepared", lane, number, attempt)
    if noise.random() < 0.15:
        if not prepared:
            hand.say("abort", lane, number, attempt)  # From here on nobody can commit it.
        producer.abort_transaction()
        if prepared:
            hand.say("abort", lane, number, attempt)  # Until here a successor or anybody could.
    else:
        producer.commit_transaction()
        hand.say("ack", lane, number, attempt)
    time.sleep(noise.random() * PAUSE_S)


def loads(hand: Hand, lane: str, lane_number: int, seed: int) -> None:
    """An application, for ever; another process may begin a run of it, and this one is fenced."""
    noise = random.Random(seed)
    while True:
        run_id = hand.store.begin_run(lane)
        try:
            while noise.random() < 0.95 and one_load(hand, run_id, lane, lane_number, noise):
                pass
        except StagedRunFencedError:
            hand.say("fenced", lane)
        except StagedCommitError as error:
            # The newer run was begun, or committed, while this one was staging.
            if "was overtaken" not in str(error):
                raise
            hand.say("fenced", lane)
        except UnstableOffsetCommitError:
            hand.say("again", lane)


def one_load(hand: Hand, run_id: str, lane: str, lane_number: int, noise: random.Random) -> bool:
    """Stage a job and commit it, or give its run up; return whether it was committed."""
    store, number, attempt = hand.store, next_number(hand, lane_number), attempt_id()
    hand.say("try", lane, number, attempt)
    with eoslog.StagedWriter(
        store.path,
        lane,
        run_id,
        attempt,
        partitions={EVENTS: PARTITIONS},
        durability=store.durability,
    ) as writer:
        for partition, ones in records_at(lane, number).items():
            writer.append(EVENTS, partition, values_of(ones, attempt))
    if noise.random() < 0.15:
        hand.say("abort", lane, number, attempt)  # From here on nobody can commit it.
        store.sweep_run(lane, run_id)
        return False
    application = store.application(lane)
    assert application is not None
    offsets = {NUMBERS_GROUP: {number_at(lane_number): number + 1}}
    version = application.version + 1
    if not store.commit_staged(lane, version, [writer.message], offsets=offsets).committed:
        hand.say("fenced", lane)  # Another run committed this version since it was read.
        return False
    hand.say("ack", lane, number, attempt)
    time.sleep(noise.random() * PAUSE_S)
    return True


def named(hand: Hand, lane: str, partition: int, seed: int) -> None:
    """A name, for ever; positions go on over all its lives."""
    noise = random.Random(seed)
    while True:
        producer = hand.store.producer(name=lane)
        try:
            position = producer.next_sequence(EVENTS, partition)
            hand.say("start", lane, position)
            while noise.random() < 0.98:
                position = one_append(hand, producer, lane, partition, position, noise)
            producer.close()
        except FENCED:
            hand.say("fenced", lane)


def plain(hand: Hand, lane: str, partition: int, seed: int) -> None:
    """One producer, for the life of this process."""
    noise, position = random.Random(seed), 0
    with hand.store.producer() as producer:
        hand.say("start", lane, 0)
        while True:
            position = one_append(hand, producer, lane, partition, position, noise)


def one_append(
    hand: Hand,
    producer: eoslog.Producer,
    lane: str,
    partition: int,
    position: int,
    noise: random.Random,
) -> int:
    count = noise.choice((1, 1, 2, 10))
    values = [f"{lane}:{position + index}:0:0:" + "y" * (position % 90) for index in range(count)]
    hand.say("try", lane, position + count - 1, "0")
    if noise.random() < 0.5:
        producer.append(EVENTS, partition=partition, values=[one.encode() for one in values])
    else:
        for one in values:
            producer.send(EVENTS, value=one.encode(), partition=partition)
        producer.flush()
    hand.say("ack", lane, position + count - 1, "0")
    time.sleep(noise.random() * PAUSE_S)
    return position + count


def copies_of(value: bytes) -> list[bytes]:
    """What a record becomes: none to two others."""
    return [b"%s/%d" % (value, index) for index in range(zlib.crc32(value) % 3)]


def copies(hand: Hand, partition: int, seed: int) -> None:
    """One partition's copies, for ever; another process may take it over."""
    noise = random.Random(seed)

    def process(producer: eoslog.Producer, records: list[eoslog.Record]) -> None:
        for record in records:
            for output in copies_of(record.value or b""):
                producer.send(COPIES, value=output, partition=record.partition)
        if noise.random() < 0.1:
            producer.flush()
        if noise.random() < 0.02:
            raise ArithmeticError("the program's own")
        hand.say("copied", partition, records[-1].offset)

    while True:
        rounds = iter(range(noise.randrange(100)))
        hand.say("alive")
        try:
            eoslog.read_process_write(
                hand.store,
                process,
                topics=[TopicPartition(EVENTS, partition)],
                group=COPIES_GROUP,
                transactional_id=f"copies-{partition}",
                max_records=noise.choice((1, 10, 100)),
                poll_timeout_s=0.05,
                stop=lambda rounds=rounds: next(rounds, None) is None,
            )
        except ArithmeticError:
            pass
        except FENCED:
            hand.say("fenced", f"copies-{partition}")
        except (ConcurrentTransactionsError, UnstableOffsetCommitError, TransactionAbortableError):
            hand.say("again", f"copies-{partition}")


def shares(hand: Hand, transactional_id: str, seed: int) -> None:
    """A member of a group, for ever: its partitions are what the others leave to it."""
    noise = random.Random(seed)
    config = {"max.poll.interval.ms": noise.choice((300, 300_000))}
    while True:
        with (
            hand.store.producer(transactional_id=transactional_id) as producer,
            hand.store.consumer(MEMBERS_GROUP, config=config) as consumer,
        ):
            consumer.subscribe([EVENTS])
            try:
                producer.init_transactions()
                for _ in range(noise.randrange(300)):
                    hand.say("alive")
                    records = consumer.poll(timeout=0.05, max_records=noise.choice((1, 10, 100)))
                    if records:
                        share(hand, producer, consumer, records)
            except FENCED:
                hand.say("fenced", transactional_id)
            except (ConcurrentTransactionsError, UnstableOffsetCommitError):
                hand.say("again", transactional_id)


def share(
    hand: Hand,
    producer: eoslog.Producer,
    consumer: eoslog.Consumer,
    records: list[eoslog.Record],
) -> None:
    """One transaction: what a poll gave, and the offsets behind it, as a member of the group."""
    producer.begin_transaction()
    try:
        for record in records:
            for output in copies_of(record.value or b""):
                producer.send(SHARES, value=output, partition=record.partition)
        offsets = next_offsets(consumer, records)
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
        hand.say("shared", len(records))
    except EoslogError as error:
        if error.fatal or isinstance(error, FENCED):
            raise
        # Others may have its partitions now, and will make them of the same records.
        hand.say("refused", type(error).__name__)
        producer.abort_transaction()
        consumer.seek_to_committed()


def watches(hand: Hand, isolation_level: str, seed: int) -> None:
    """Reads a partition from some offset on, for a while, and then another; says all it saw."""
    noise = random.Random(seed)
    while True:
        watch_once(hand, hand.store, isolation_level, noise)


def watch_once(hand: Hand, store: eoslog.Store, isolation_level: str, noise: random.Random) -> None:
    partition = noise.randrange(PARTITIONS)
    where = TopicPartition(EVENTS, partition)
    with store.consumer(isolation_level=isolation_level) as consumer:
        consumer.assign([where])
        if noise.random() < 0.5:
            consumer.seek_to_end()
        else:
            end = consumer.end_offsets([where])[where]
            consumer.seek(where, noise.randint(max(0, end - 300), end))
        hand.say("watch", partition, consumer.position(where))
        for _ in range(noise.randint(5, 60)):
            try:
                records = consumer.poll(timeout=0.05, max_records=noise.choice((1, 20, 500)))
            except OffsetOutOfRangeError:
                break
            if records:
                seen = [[one.offset, (one.value or b"").decode()[:60]] for one in records]
                hand.say("saw", consumer.position(where), seen)


def looks_on(hand: Hand, path: str, isolation_level: str, seed: int) -> None:
    """As `watches`, of a store that is opened to be read alone; it also looks at what else there
    is. Whether a process has the store open or not makes no difference to it.
    """
    noise = random.Random(seed)
    while True:
        with suppress(StoreReopenedError), eoslog.open(path, read_only=True) as store:
            for _ in range(noise.randint(1, 20)):
                watch_once(hand, store, isolation_level, noise)
                store.groups()
                store.transactions()
                store.producers()
                store.snapshot([EVENTS, COPIES])


def operates(hand: Hand, seed: int) -> None:
    """What an operator does meanwhile: looks, fences, makes and deletes topics."""
    noise, store = random.Random(seed), hand.store
    while True:
        time.sleep(noise.random() * 0.03)
        hand.say("alive")
        chance = noise.random()
        try:
            if chance < 0.2:
                store.create_topic(f"topic-{noise.randrange(3)}", 2)
            elif chance < 0.4:
                store.delete_topic(f"topic-{noise.randrange(3)}")
            elif chance < 0.46:
                check_snapshot(store)
            elif chance < 0.5:
                store.snapshot([EVENTS, COPIES])
            elif chance < 0.53:
                with store.producer(transactional_id="operator") as transactional:
                    transactional.init_transactions()
                    with transactional.transaction():
                        for topic in noise.sample(range(3), 2):
                            transactional.append(f"topic-{topic}", partition=0, values=[b"x"])
            elif chance < 0.6:
                store.groups()
            elif chance < 0.7:
                store.transactions()
            elif chance < 0.75:
                known = [one.transactional_id for one in store.transactions()]
                store.abort_transaction(noise.choice(known or ["none"]))
            elif chance < 0.8:
                store.flush()
            elif chance < 0.85:
                store.producers()
            else:
                with store.producer() as producer:
                    producer.append(f"topic-{noise.randrange(3)}", partition=0, values=[b"x" * 99])
        except (
            *FENCED,
            TopicAlreadyExistsError,
            UnknownTopicOrPartitionError,
            TransactionalIdNotFoundError,
            ConcurrentTransactionsError,
        ):
            pass


def check_snapshot(store: eoslog.Store) -> None:
    """Up to a snapshot's offsets each transaction of the lanes is there whole, or not at all."""
    found: dict[str, set[str]] = {}
    with store.consumer() as consumer:
        for where, upper_bound in store.snapshot([EVENTS]).items():
            consumer.assign([where])
            while records := consumer.poll(timeout=0, max_records=10_000):
                for record in records:
                    lane, number, index, attempt, _ = (record.value or b"").decode().split(":")
                    if record.offset < upper_bound and attempt != "0":
                        found.setdefault(f"{lane}:{number}", set()).add(
                            f"{where.partition}:{index}"
                        )
    for name, there in found.items():
        lane, number = name.split(":")
        wanted = {
            f"{partition}:{one.split(':')[2]}"
            for partition, ones in records_at(lane, int(number)).items()
            for one in ones
        }
        assert there == wanted, f"a snapshot cuts {name}: {wanted - there} are missing"


def settle_prepared(hand: Hand, seed: int) -> int:
    """Decide what processes prepared that are dead; how many there were."""
    noise, count = random.Random(seed), 0
    for one in hand.store.transactions():
        described = hand.store.describe_transaction(one.transactional_id)
        if described.prepared:
            token = eoslog.PreparedTransaction(
                one.transactional_id, described.producer_id, described.producer_epoch
            )
            if noise.random() < 0.5:
                hand.store.commit_prepared([token])
            else:
                hand.store.abort_prepared([token])
            count += 1
    return count


def opens_and_closes(hand: Hand, path: str, options: dict[str, Any]) -> None:
    """Joins and leaves, for ever; it writes nothing."""
    while True:
        hand.open(path, **options)
        with suppress(EoslogError):
            hand.store.partition(EVENTS, 0).log_end_offset  # noqa: B018
        hand.close()
        hand.say("alive")
        time.sleep(0.005)


def everything(hand: Hand) -> dict[str, Any]:
    """What the store holds, for the checks, as this process sees it."""
    offsets = {
        group: {str(where): found.offset for where, found in of_group.items()}
        for group, of_group in hand.store.groups().items()
    }
    return {
        "committed": {topic: records_of(hand, topic, "read_committed") for topic in WRITTEN},
        "all": records_of(hand, EVENTS, "read_uncommitted"),
        "offsets": offsets,
        "verify": hand.store.verify(),
    }


def records_of(hand: Hand, topic: str, isolation_level: str) -> list[list[list[Any]]]:
    """Per partition, offset and value of each record."""
    found = []
    with hand.store.consumer(isolation_level=isolation_level) as consumer:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition)])
            rows: list[list[Any]] = []
            while records := consumer.poll(timeout=0, max_records=10_000):
                rows += [[one.offset, (one.value or b"").decode()] for one in records]
            found.append(rows)
    return found


def undecided(hand: Hand, application: str) -> list[str]:
    """The partitions that hold an open transaction, and the application if its job is not all in.

    Such a job was decided by a process that died. Readers are held before it, so it looks open
    nowhere; who finds the flag of jobs set completes it within about a second.
    """
    state = hand.store.application(application)
    found = [f"{application}: {state}"] if state and state.state == "prepared" else []
    for topic in WRITTEN:
        for number in range(PARTITIONS):
            partition = hand.store.partition(topic, number)
            if partition.last_stable_offset < partition.log_end_offset:
                found.append(f"{topic}-{number}: {partition.open_transactions()}")
    return found
