"""Consumer that records its calls and their results."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from eoslog.checking.recorded_call import Call, CallWriter, offsets_as_json, partitions_as_json
from eoslog.common.arguments import check_synchronous, whole_number
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.consumer.consumer import ConsumerInternals
from eoslog.errors import EoslogError

if TYPE_CHECKING:
    from eoslog import Consumer, ConsumerGroupMetadata, OffsetAndMetadata, Record

# Of the consumer itself: they move nothing.
_READ = frozenset(
    {"beginning_offsets", "closed", "committed_metadata", "lag", "offsets_for_times"}
    | {"pause", "paused", "resume", "subscription"}
)

OnChange = Callable[["RecordedConsumer", list[TopicPartition]], object]


class RecordedConsumer:
    """A consumer and its history; `Recorder.consumer` makes it. One thread uses it.

    Its methods take and raise the same as those of the consumer. All moves of the consumer except
    polls are recorded as a `seek`: an assignment, a rebalance, a reset by retention too.
    """

    def __init__(self, recorder: CallWriter, consumer: "Consumer", client: str) -> None:
        self._recorder = recorder
        self._consumer = consumer
        self._client = client
        self._internals = ConsumerInternals(consumer)
        self._stands: dict[TopicPartition, int] = {}
        self._moved: set[TopicPartition] = set()
        self._last_poll: Call | None = None

    @property
    def consumer(self) -> "Consumer":
        """The consumer itself: direct calls are not recorded."""
        return self._consumer

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Do `assign`: the next poll shows the positions. A beginning at the oldest record is
        recorded.
        """
        chosen = list(partitions)
        self._consumer.assign(chosen)
        self._forget(chosen)
        positions = self._internals.positions
        if self._internals.group is None and positions.begins_at_oldest:
            moved = map(as_topic_partition, chosen)
            self._note_oldest([where for where in moved if positions.get(where) is None])

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: Any = None,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        on_lost: OnChange | None = None,
    ) -> None:
        """Do `subscribe`; partitions that the group gives are recorded as a `seek`."""
        tell_assigned = self._passed_on(on_assigned, "on_assigned")

        def assigned(consumer: "Consumer", partitions: list[TopicPartition]) -> object:
            self._moved.update(partitions)
            return None if tell_assigned is None else tell_assigned(consumer, partitions)

        self._consumer.subscribe(
            topics,
            pattern=pattern,
            on_assigned=assigned,
            on_revoked=self._passed_on(on_revoked, "on_revoked"),
            on_lost=self._passed_on(on_lost, "on_lost"),
        )

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Record and do `seek`.

        After a seek beyond the end the next poll shows the position: it may be the beginning.
        """
        where, position = as_topic_partition(topic_partition), whole_number(offset, "an offset")
        begin = time.monotonic_ns()
        end = -1
        with suppress(EoslogError):  # The seek raises its own errors.
            end = self._consumer.end_offsets([where])[where]
        self._consumer.seek(where, position)
        if position > end:
            self._forget([where], begin)
            return
        self._stands[where] = position
        self._write("seek", begin, positions=partitions_as_json({where: position}))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Record and do `seek_to_beginning`."""
        self._consumer.seek_to_beginning(*partitions)
        moved = list(partitions or self._consumer.assignment())
        self._forget(moved)
        self._note_oldest(moved)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Record and do `seek_to_end`."""
        self._consumer.seek_to_end(*partitions)
        self._forget(partitions or self._consumer.assignment())

    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Record and do `seek_to_committed`."""
        self._consumer.seek_to_committed(*partitions)
        self._forget(partitions or self._consumer.assignment())

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> "list[Record]":
        """Record and do `poll`: its records and the positions after it.

        After a poll that raises the positions are unknown until the next one.
        """
        begin = time.monotonic_ns()
        try:
            records = self._consumer.poll(timeout, max_records)
            self._last_poll = self._written_poll(begin, records)
        except BaseException:
            self._moved.clear()
            self._forget(self._consumer.assignment() if not self._consumer.closed else ())
            raise
        return records

    def _written_poll(self, begin: int, records: "list[Record]") -> Call:
        given: dict[TopicPartition, list[list[Any]]] = {}
        for record in records:
            where = TopicPartition(record.topic, record.partition)
            identity = self._recorder.identity(record.key, record.value)
            given.setdefault(where, []).append([record.offset, identity])
        positions = self._looked_at(given)
        self._note_moves(begin, given, positions)
        self._stands |= positions
        return self._recorder.write(
            self._client,
            "poll",
            begin,
            isolation=self._internals.isolation_level,
            records=partitions_as_json(given),
            next=partitions_as_json(positions),
        )

    def last_poll_was_for(self, transaction: str) -> None:
        """Record that the last poll returned the input of a transaction."""
        if self._last_poll is not None:
            self._last_poll.again(transaction=transaction)

    def commit(
        self, offsets: "Mapping[TopicPartition, int | OffsetAndMetadata] | None" = None
    ) -> None:
        """Record and do `commit`: an `offsets` outside of transactions."""
        chosen = self._internals.positions.begun() if offsets is None else offsets
        call = self._recorder.start(
            self._client, "offsets", group=self._internals.group, offsets=offsets_as_json(chosen)
        )
        try:
            self._consumer.commit(chosen)
        except BaseException as error:
            call.raised(error)
            raise
        call.ok()

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Record and do `committed`."""
        begin = time.monotonic_ns()
        found = self._consumer.committed(list(partitions))
        self._write(
            "committed", begin, group=self._internals.group, offsets=partitions_as_json(found)
        )
        return found

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Record and do `end_offsets`: an `ends`. Name all partitions of a topic.

        Not recorded for a topic to which a staged job is being added: its readers are held, and
        records that others append during the call are after the end that readers get.
        """
        asked = list(partitions)
        self._consumer.assignment()  # Raises if it is closed.
        begin = time.monotonic_ns()
        held = self._held_topics(asked)
        found = self._consumer.end_offsets(asked)
        held |= self._held_topics(asked)
        ends = {where: at for where, at in found.items() if where.topic not in held}
        if ends:
            self._write(
                "ends",
                begin,
                isolation=self._internals.isolation_level,
                offsets=partitions_as_json(ends),
            )
        return found

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset that is read next."""
        return self._consumer.position(topic_partition)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._consumer.assignment()

    def group_metadata(self) -> "ConsumerGroupMetadata":
        """Return the identity that commits, for `send_offsets_to_transaction`."""
        return self._consumer.group_metadata()

    def unsubscribe(self) -> None:
        """Record and do `unsubscribe`."""
        moved = self._consumer.assignment()
        self._consumer.unsubscribe()
        self._forget(moved)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def __iter__(self) -> "Iterator[Record]":
        """Yield records as the consumer does; each is a poll."""
        while True:
            yield from self.poll(max_records=1)

    def __getattr__(self, name: str) -> Any:
        if name in _READ:
            return getattr(self._consumer, name)
        raise AttributeError(f"{name!r} of a consumer is not recorded: call it on `consumer`")

    def __enter__(self) -> "RecordedConsumer":
        return self

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        self.close()

    def _passed_on(self, call: OnChange | None, name: str) -> Any:
        """Return a callback that gets this consumer instead. Raises TypeError."""
        if call is None:
            return None
        check_synchronous(call, name)
        return lambda _, partitions: call(self, partitions)

    def _held_topics(self, partitions: Iterable[TopicPartition]) -> set[str]:
        """Return the topics of these partitions in which readers are held."""
        chosen = map(as_topic_partition, partitions)
        return {
            where.topic for where in chosen if self._internals.partition(where).hold_offset >= 0
        }

    def _looked_at(
        self, given: Mapping[TopicPartition, list[list[Any]]]
    ) -> dict[TopicPartition, int]:
        """Return the positions, except those after the end of their log: the next poll there may go
        back to the beginning.
        """
        found = self._internals.positions.begun()
        for where in [one for one in found if one not in given]:
            with suppress(EoslogError):  # Its topic was deleted.
                if found[where] > self._internals.partition(where).log_end_offset:
                    del found[where]
        return found

    def _note_moves(
        self,
        begin: int,
        given: Mapping[TopicPartition, list[list[Any]]],
        positions: Mapping[TopicPartition, int],
    ) -> None:
        """Record the moves of the consumer during a poll, apart from its reads."""
        for where, position in positions.items():
            stood = self._stands.get(where)
            if stood is not None and self._jumped(where, stood, given, position):
                self._moved.add(where)
        if self._moved:
            self._forget(self._moved, begin)
            self._moved.clear()

    def _jumped(
        self,
        where: TopicPartition,
        stood: int,
        given: Mapping[TopicPartition, list[list[Any]]],
        position: int,
    ) -> bool:
        """True if the log no longer held the offset at the position: the consumer was reset."""
        first = given[where][0][0] if given.get(where) else position
        return first > stood and self._consumer.beginning_offsets([where])[where] > stood

    def _forget(self, partitions: Iterable[TopicPartition], begin: int | None = None) -> None:
        """Record that these positions changed; the next poll shows them."""
        moved = [TopicPartition(*one) for one in partitions]
        for where in moved:
            self._stands.pop(where, None)
        if moved:
            begin = time.monotonic_ns() if begin is None else begin
            self._write("seek", begin, positions=partitions_as_json(dict.fromkeys(moved)))

    def _note_oldest(self, partitions: list[TopicPartition]) -> None:
        """Record that the next poll begins at the oldest records of these partitions.

        If retention deletes them before, it is noted as a move of that poll.
        """
        begin = time.monotonic_ns()
        with suppress(EoslogError):  # Then they stay unknown.
            oldest = self._consumer.beginning_offsets(partitions)
            self._stands |= oldest
            if oldest:
                self._write("seek", begin, positions=partitions_as_json(oldest))

    def _write(self, kind: str, begin: int, **fields: Any) -> None:
        self._recorder.write(self._client, kind, begin, **fields)
