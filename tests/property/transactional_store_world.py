"""A store with transactional producers, and its model: each call goes to both."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from reference_model.transaction_model import (
    ABORTED,
    COMMITTED,
    PREPARED,
    Place,
    StoreModel,
    TransactionModel,
    WriterModel,
)
from staged_jobs import load
from store_copies import copy_store

import eoslog
from eoslog.errors import (
    IllegalStateError,
    InvalidTimestampError,
    ProducerFencedError,
    StagedJobIncompleteError,
    StoreFullError,
    UnstableOffsetCommitError,
)
from eoslog.staging.application import ApplicationRecord
from eoslog.store.store import parts_of
from eoslog.transactions.timeouts import abort_timed_out

TOPICS = {"orders": 2, "billing": 1}
PLACES: list[Place] = [
    (topic, number) for topic, count in TOPICS.items() for number in range(count)
]
# Takes no record whose time is ahead; nobody reads it.
STRICT = "strict"
GROUPS = ("readers", "others")
TIMEOUT_MS = 60_000
ISOLATIONS = ("read_committed", "read_uncommitted")


@dataclass(eq=False)
class Writer:
    """A producer and its model. `prepared` is what its transaction can be decided by."""

    producer: Any
    model: WriterModel


def _no_room(record: ApplicationRecord) -> ApplicationRecord:
    raise StoreFullError(f"no room to complete {record.app_id}")


class TransactionalStoreWorld:
    """The store, the model, the writers that are alive, and a reader that only goes forward."""

    def __init__(self, root: Path, *, segment_bytes: int, durability: str) -> None:
        self._root = root
        self._kills = 0
        self._durability = durability
        self._path = root / "store-0"
        self.model = StoreModel(PLACES)
        self.writers: list[Writer] = []
        self.prepared: dict[TransactionModel, Any] = {}
        self.known_ids: set[str] = set()
        self._value_count = 0
        with eoslog.open(self._path, create=True, durability=durability) as store:
            for topic, count in TOPICS.items():
                store.create_topic(topic, partitions=count, config={"segment.bytes": segment_bytes})
            store.create_topic(STRICT, config={"message.timestamp.after.max.ms": 1000})
        self._seen: dict[Place, list[bytes]] = {place: [] for place in PLACES}
        self._positions: dict[Place, int] = dict.fromkeys(PLACES, 0)
        self._open()

    def _open(self) -> None:
        self.store = eoslog.open(self._path, durability=self._durability)
        self._plain = self.store.producer()
        self._consumers = {
            isolation: self.store.consumer(isolation_level=isolation) for isolation in ISOLATIONS
        }
        for consumer in self._consumers.values():
            consumer.assign([eoslog.TopicPartition(*place) for place in PLACES])
        self._tail = self.store.consumer()
        self._tail.assign([eoslog.TopicPartition(*place) for place in PLACES])
        for place, position in self._positions.items():
            self._tail.seek(eoslog.TopicPartition(*place), position)

    def values(self, count: int) -> list[bytes]:
        """Values that no other record has."""
        first = self._value_count
        self._value_count += count
        return [b"%d" % number for number in range(first, first + count)]

    # -- producers ---------------------------------------------------------------------------------

    def append_plainly(self, place: Place, count: int) -> None:
        values = self.values(count)
        self._plain.append(place[0], partition=place[1], values=values)
        self.model.append(place, values)

    def new_writer(self, transactional_id: str, *, keep_prepared: bool) -> None:
        """It takes the id over: the older writers are fenced, their transactions aborted."""
        producer = self.store.producer(
            transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
        )
        kept = producer.init_transactions(keep_prepared=keep_prepared)
        self.known_ids.add(transactional_id)
        made = Writer(producer, WriterModel(transactional_id))
        for writer in self._of(transactional_id):
            self.model.fence(writer.model, keep_prepared=keep_prepared)
        found = self.model.prepared_of(transactional_id)
        if found is not None and not keep_prepared:
            self.model.decide(found, ABORTED)
            found = None
        assert (kept is None) == (found is None)
        if found is not None:
            assert kept.transactional_id == transactional_id
            made.model.transaction = found
            made.model.in_transaction = True
            self.prepared[found] = kept
        self.writers.append(made)

    def _of(self, transactional_id: str) -> list[Writer]:
        return [one for one in self.writers if one.model.transactional_id == transactional_id]

    def attempt(self, writer: Writer, call: Callable[[], object], *, writes: bool = False) -> bool:
        """Whether the call was done for a writer that is not fenced.

        Nobody may be refused as fenced who is not. A fenced one may come to hear of it at its next
        write only; until then its calls do nothing.
        """
        try:
            call()
        except ProducerFencedError:
            assert writer.model.is_fenced, "a writer was fenced, and nobody took its id over"
            return False
        except IllegalStateError:
            assert writer.model.is_fenced, "a writer is not in the state that it should be in"
            return False
        assert not (writes and writer.model.is_fenced), "a fenced writer has written"
        return not writer.model.is_fenced

    def begin(self, writer: Writer) -> None:
        if self.attempt(writer, writer.producer.begin_transaction):
            writer.model.in_transaction = True

    def send(self, writer: Writer, place: Place, count: int) -> None:
        """A fenced writer may still gather: it comes to nothing."""
        for value in self.values(count):
            if self.attempt(writer, partial(writer.producer.send, place[0], value, None, place[1])):
                self.model.send(writer.model, place, value)

    def append(self, writer: Writer, place: Place, count: int) -> None:
        values = self.values(count)
        done = self.attempt(
            writer,
            lambda: writer.producer.append(place[0], partition=place[1], values=values),
            writes=True,
        )
        if done:
            self.model.append_in_transaction(writer.model, place, values)

    def flush(self, writer: Writer) -> None:
        if self.attempt(writer, writer.producer.flush):
            self.model.flush(writer.model)

    def send_offsets(self, writer: Writer, group: str, place: Place, offset: int) -> None:
        offsets = {eoslog.TopicPartition(*place): offset}
        done = self.attempt(
            writer,
            lambda: writer.producer.send_offsets_to_transaction(offsets, group),
            writes=True,
        )
        if done:
            self.model.send_offsets(writer.model, group, place, offset)

    def end(self, writer: Writer, *, commit: bool) -> None:
        producer = writer.producer
        call = producer.commit_transaction if commit else producer.abort_transaction
        if self.attempt(writer, call):
            self.model.end(writer.model, commit=commit)

    def end_refused(self, writer: Writer) -> None:
        """A commit that the last partition refuses, when the others have taken their records."""
        late_ms = time.time_ns() // 1_000_000 + 10**9

        def call() -> None:
            writer.producer.send(STRICT, b"late", partition=0, timestamp_ms=late_ms)
            with pytest.raises(InvalidTimestampError):
                writer.producer.commit_transaction()
            writer.producer.abort_transaction()

        if self.attempt(writer, call):
            self.model.flush(writer.model)
            self.model.end(writer.model, commit=False)

    def prepare(self, writer: Writer) -> None:
        found: list[Any] = []
        done = self.attempt(writer, lambda: found.append(writer.producer.prepare_transaction()))
        if done:
            self.prepared[self.model.prepare(writer.model)] = found[0]

    def close(self, writer: Writer) -> None:
        """What is open is aborted, what is prepared stays."""
        writer.producer.close()
        self.writers.remove(writer)
        if not writer.model.is_fenced:
            self.model.fence(writer.model, keep_prepared=True)

    def load(self, records: dict[Place, int], *, lose_complete: bool) -> None:
        """A staged job. Of one that dies before it is complete readers may see all."""
        found = {place: self.values(count) for place, count in records.items()}
        if lose_complete:
            self.store.begin_run("load")  # Completes the job before, or this one would not begin.
            with pytest.MonkeyPatch.context() as patched, pytest.raises(StagedJobIncompleteError):
                patched.setattr(ApplicationRecord, "completed", _no_room)
                load(self.store, "load", found)
        else:
            load(self.store, "load", found)
        self.model.load(found)

    # -- others ------------------------------------------------------------------------------------

    def decide(self, transaction: TransactionModel, *, commit: bool) -> None:
        """Whoever keeps what a prepare answered may decide; the writer has nothing left to do."""
        decide = self.store.commit_prepared if commit else self.store.abort_prepared
        decide([self.prepared[transaction]])
        self.model.decide(transaction, COMMITTED if commit else ABORTED)
        # Once more does no harm.
        decide([self.prepared[transaction]])
        for writer in self._of(transaction.transactional_id):
            if writer.model.transaction is transaction:
                self._forget(writer)

    def _forget(self, writer: Writer) -> None:
        """Its transaction is over without it: it is only closed."""
        writer.producer.close()
        self.writers.remove(writer)

    def abort_as_operator(self, transactional_id: str) -> None:
        self.store.abort_transaction(transactional_id)
        for writer in self._of(transactional_id):
            self.model.fence(writer.model, keep_prepared=False)
        found = self.model.prepared_of(transactional_id)
        if found is not None:
            self.model.decide(found, ABORTED)

    def let_time_pass(self) -> None:
        """Long enough for every timeout: what is open is aborted, what is prepared stays."""
        later_ms = time.time_ns() // 1_000_000 + 10 * TIMEOUT_MS
        aborted = abort_timed_out(parts_of(self.store).files.transactions, later_ms)
        opened = [
            one for one in self.writers if one.model.transaction and one.model.transaction.is_open
        ]
        assert aborted == len(opened)
        for writer in opened:
            self.model.fence(writer.model, keep_prepared=True)

    def commit_offset(self, group: str, place: Place, offset: int) -> None:
        with self.store.consumer(group=group) as consumer:
            consumer.commit({eoslog.TopicPartition(*place): offset})
        self.model.commit_offset(group, place, offset)

    def reopen(self, *, kill: bool, lost: tuple[str, ...]) -> None:
        """A kill leaves the files as they stand; what is made from the logs may be lost too."""
        if kill:
            self._kills += 1
            killed = self._root / f"store-{self._kills}"
            copy_store(self._path, killed)
            self.store.close()
            shutil.rmtree(self._path)
            self._path = killed
        else:
            self.store.close()
        self.lose(lost)
        self.writers.clear()
        self.model.lose_the_process()
        self._open()

    def lose(self, lost: tuple[str, ...]) -> None:
        for what in lost:
            if what == "rows":
                shutil.rmtree(self._path / "state" / "lmdb")
            else:
                for path in self._path.glob(f"*/*{what}"):
                    path.unlink()

    # -- what must always hold ---------------------------------------------------------------------

    def check_reads(self) -> None:
        for isolation in ISOLATIONS:
            found = self._read_all(isolation)
            for place in PLACES:
                expected = (
                    self.model.committed_values(place)
                    if isolation == "read_committed"
                    else self.model.all_values(place)
                )
                assert [value for _, value in found[place]] == expected, (isolation, place)
            if isolation == "read_uncommitted":
                self._check_bounds(found)

    def _read_all(self, isolation: str) -> dict[Place, list[tuple[int, bytes]]]:
        consumer = self._consumers[isolation]
        consumer.seek_to_beginning()
        found: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in PLACES}
        while records := consumer.poll(timeout=0, max_records=100):
            for record in records:
                found[record.topic, record.partition].append((record.offset, record.value))
        return found

    def _check_bounds(self, found: dict[Place, list[tuple[int, bytes]]]) -> None:
        """The last stable offset is that of the first undecided record, else the log's end."""
        for place, records in found.items():
            partition = self.store.partition(*place)
            decided = self.model.decided_count(place)
            stable = records[decided][0] if decided < len(records) else partition.log_end_offset
            assert partition.last_stable_offset == stable, place

    def check_offsets(self) -> None:
        for group in GROUPS:
            with (
                self.store.consumer(group=group) as stable,
                self.store.consumer(group=group, isolation_level="read_uncommitted") as any_time,
            ):
                for place in PLACES:
                    where = eoslog.TopicPartition(*place)
                    expected = self.model.offset_of(group, place)
                    assert any_time.committed(where) == expected
                    try:
                        assert stable.committed(where) == expected
                    except UnstableOffsetCommitError:
                        assert self.model.has_pending_offset(group, place)
                    else:
                        assert not self.model.has_pending_offset(group, place)

    def poll_forward(self, records_max: int) -> None:
        """A reader that goes on where it was, over kills too: each record once, in order."""
        for record in self._tail.poll(timeout=0, max_records=records_max):
            place = (record.topic, record.partition)
            self._seen[place].append(record.value)
            self._positions[place] = record.offset + 1
        for place, seen in self._seen.items():
            assert seen == self.model.committed_values(place)[: len(seen)], place

    def check_snapshot(self) -> None:
        """Below the snapshot's offsets each committed transaction is whole, or not there."""
        self._check_snapshot(self.store.snapshot())
        for topic in TOPICS:
            self._check_snapshot(self.store.snapshot([topic]))

    def _check_snapshot(self, offsets: dict[eoslog.TopicPartition, int]) -> None:
        found = self._read_all("read_committed")
        places = [where for where in PLACES if eoslog.TopicPartition(*where) in offsets]
        below: dict[TransactionModel, int] = {}
        for place in places:
            bound = offsets[eoslog.TopicPartition(*place)]
            seen = {value for offset, value in found[place] if offset < bound}
            for one in self.model.partitions[place]:
                if one.value in seen and one.transaction is not None:
                    below[one.transaction] = below.get(one.transaction, 0) + 1
        for transaction, count in below.items():
            whole = sum(
                one.transaction is transaction
                for place in places
                for one in self.model.partitions[place]
            )
            assert count == whole, "a snapshot cuts a transaction in two"
        if not any(one.is_undecided for one in self.model.transactions):
            for where, bound in offsets.items():
                assert bound == self.store.partition(*where).log_end_offset, where

    def check_listing(self) -> None:
        """What operators are shown of transactions is what is open."""
        listed = {one.transactional_id: one.transaction_state for one in self.store.transactions()}
        assert set(listed) == self.known_ids
        undecided = {
            one.transactional_id: one.state for one in self.model.transactions if one.is_undecided
        }
        for transactional_id, state in listed.items():
            assert (state == "Ongoing") == (transactional_id in undecided), (
                transactional_id,
                state,
            )

    def prepared_transactions(self) -> list[TransactionModel]:
        return [one for one in self.model.transactions if one.state == PREPARED]
