"""Producer that records its calls and their results."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eoslog import AppendResult
from eoslog.checking.history import PARTITION_MAX
from eoslog.checking.recorded_call import Call, CallWriter, had_no_effect, offsets_as_json
from eoslog.checking.recorded_consumer import RecordedConsumer
from eoslog.common.arguments import whole_number
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError

if TYPE_CHECKING:
    from eoslog import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        PreparedTransaction,
        Producer,
        RecordMetadata,
        TransactionalProducer,
    )

# So many sends are open at once; a flush ends them.
GATHERED_MAX = 10_000

# Of the producer itself: they change nothing.
_READ = frozenset({"name", "next_sequence", "producer_epoch", "producer_id", "transactional_id"})

OnDelivery = Callable[[Exception | None, "RecordMetadata"], object]
Headers = Iterable[tuple[str, bytes | None]] | dict[str, bytes | None] | None


class RecordedProducer:
    """A producer and its history; `Recorder.producer` makes it. One thread uses it.

    Its methods take and raise the same as those of the producer. `send` gathers: the next `flush`
    acknowledges a plain producer's record, and every 10,000th send flushes; a record of a
    transaction belongs to it at once.
    """

    def __init__(
        self, recorder: CallWriter, producer: "Producer | TransactionalProducer", client: str
    ) -> None:
        self._recorder = recorder
        self._producer = producer
        self._client = client
        self._transactional = self._transactional_id is not None
        self._transaction: str | None = None
        # The transaction that a failed commit may have decided.
        self._in_doubt: str | None = None
        # The commit that any holder of the prepared transaction may make.
        self._prepared: Call | None = None
        self._gathered: list[Call] = []

    @property
    def producer(self) -> "Producer | TransactionalProducer":
        """The producer itself: direct calls are not recorded."""
        return self._producer

    def init_transactions(self) -> None:
        """Record and do `init_transactions`: an `init`, with the new id and epoch."""
        call = self._start("init", transactional_id=self._transactional_id)
        self._done(call, self._producer.init_transactions)
        call.again(**self._identity())

    def begin_transaction(self, inputs: Iterable[RecordedConsumer] = ()) -> str:
        """Begin a transaction, and return its name in the history.

        The last polls of these consumers are recorded as its inputs.
        """
        self._producer.begin_transaction()
        name = f"{self._transactional_id}-{os.urandom(6).hex()}"
        for consumer in inputs:
            consumer.last_poll_was_for(name)
        self._transaction, self._prepared = name, None
        return name

    @contextmanager
    def transaction(self, inputs: Iterable[RecordedConsumer] = ()) -> Iterator[str]:
        """Begin, then commit; an exception aborts. Yields the transaction's name.

        A transaction that was ended or prepared inside is left as it is. If the abort fails, the
        exception gets a note.
        """
        name = self.begin_transaction(inputs)
        try:
            yield name
            if self._is_open:
                self.commit_transaction()
        except BaseException as error:
            if self._is_open:
                try:
                    self.abort_transaction()
                except EoslogError as second:
                    error.add_note(f"aborting the transaction failed too: {second}")
            raise

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Record and do `send`."""
        identity = self._recorder.identity(key, value)
        call = self._start_write(topic, partition, value=identity)
        try:
            self._producer.send(
                topic, value, key, partition, headers, timestamp_ms, on_delivery=on_delivery
            )
        except BaseException as error:
            # Appending a full batch failed: its records, and this one, may still be gathered.
            call.unknown(error)
            raise
        if self._transactional:
            call.ok()
        else:
            self._gathered.append(call)
            if len(self._gathered) >= GATHERED_MAX:
                self.flush()

    def append(
        self,
        topic: str,
        partition: int | None = None,
        values: Any = None,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
    ) -> AppendResult | dict[int, AppendResult]:
        """Record and do `append`, with the identity of each record of the columns. A stream is held
        as a whole.
        """
        names: list[bytes | None] = [] if keys is None else _items(keys)
        if hasattr(values, "__arrow_c_stream__"):
            import pyarrow

            values = pyarrow.chunked_array(values)
            if pyarrow.types.is_struct(values.type):
                names = _items([row.get("key") for row in values.to_pylist()])
        bodies = [None] * len(names) if values is None else _items(values)
        names = names or [None] * len(bodies)
        identities = [
            self._recorder.identity(key, value) for key, value in zip(names, bodies, strict=True)
        ]
        if not identities:
            return self._producer.append(topic, partition, values, keys, timestamps, headers)
        call = self._start_write(topic, partition, values=identities)
        try:
            result = self._producer.append(topic, partition, values, keys, timestamps, headers)
        except BaseException as error:
            # Of a call in several batches the first may be in.
            (call.unknown if getattr(error, "appended_record_count", 1) else call.raised)(error)
            raise
        call.ok(**_answer(result, len(identities)), **self._identity())
        return result

    def send_offsets_to_transaction(
        self,
        offsets: "Mapping[TopicPartition, int | OffsetAndMetadata]",
        group: "str | ConsumerGroupMetadata",
    ) -> None:
        """Record and do `send_offsets_to_transaction`."""
        name = group if isinstance(group, str) else group.group_id
        call = self._start("offsets", group=name, offsets=offsets_as_json(offsets))
        self._done(call, lambda: self._producer.send_offsets_to_transaction(offsets, group))

    def commit_transaction(self) -> None:
        """Record and do `commit_transaction`."""
        was_in_doubt = self._in_doubt
        self._in_doubt = self._transaction  # At once: an interrupt may come at any line.
        try:
            self._end("commit", self._producer.commit_transaction)
        except Exception as error:
            if had_no_effect(error):
                self._in_doubt = was_in_doubt
            raise
        self._transaction = self._prepared = None

    def abort_transaction(self) -> None:
        """Record and do `abort_transaction`."""
        self._end("abort", self._producer.abort_transaction)
        self._transaction = self._prepared = None

    def prepare_transaction(self) -> "PreparedTransaction":
        """Record and do `prepare_transaction`: from here on a commit of unknown outcome.

        Any holder of the result may commit; a call here or a reader shows it to the history.
        """
        if self._transaction is None:
            return self._producer.prepare_transaction()  # It raises, or is not in this history.
        self._prepared = self._start("commit")
        try:
            return self._producer.prepare_transaction()
        except BaseException as error:
            self._prepared.raised(error)
            if had_no_effect(error):
                self._prepared = None
            raise

    def complete_transaction(self, prepared: "PreparedTransaction | str | None") -> bool:
        """Record and do `complete_transaction`: a commit or an abort, by its result.

        It is a commit with times of its own: any process may make that of `prepare_transaction`.
        """
        began_ns = time.monotonic_ns()
        fields = self._of_transaction()  # Before the call: the epoch may rise with it.
        committed = self._producer.complete_transaction(prepared)
        if self._transaction is not None:
            kind = "commit" if committed else "abort"
            self._recorder.write(self._client, kind, began_ns, **fields)
        self._transaction = self._prepared = None
        return committed

    def flush(self) -> None:
        """Do `flush`, which acknowledges the gathered records of a plain producer."""
        self._flushed(self._producer.flush)

    def close(self) -> None:
        """Close the producer, which flushes it; an open transaction is aborted.

        One whose commit was interrupted is aborted or completed: an abort of unknown outcome. One
        that was prepared stays so.
        """
        self._flushed(self._close)
        self._transaction = self._prepared = None

    def _close(self) -> None:
        if self._transaction is None or self._prepared is not None:
            self._producer.close()
        elif self._transaction == self._in_doubt:
            self._start("abort")
            self._producer.close()
        else:
            self._done(self._start("abort"), self._producer.close)

    def __getattr__(self, name: str) -> Any:
        if name in _READ:
            return getattr(self._producer, name)
        raise AttributeError(f"{name!r} of a producer is not recorded: call it on `producer`")

    def __enter__(self) -> "RecordedProducer":
        return self

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        self.close()

    @property
    def _is_open(self) -> bool:
        """True if a transaction was begun, and neither ended nor prepared."""
        return self._transaction is not None and self._prepared is None

    @property
    def _transactional_id(self) -> str | None:
        return getattr(self._producer, "transactional_id", None)

    def _flushed(self, do: Callable[[], None]) -> None:
        """Do it, and end the calls whose records were gathered until then."""
        gathered, self._gathered = self._gathered, []
        try:
            do()
        except BaseException as error:
            # What it could not append may be gone: no later flush acknowledges it.
            for call in gathered:
                call.unknown(error)
            raise
        for call in gathered:
            call.ok(**self._identity())

    def _start(self, kind: str, **fields: Any) -> Call:
        return self._recorder.start(self._client, kind, **fields, **self._of_transaction())

    def _start_write(self, topic: str, partition: int | None, **fields: Any) -> Call:
        number = None if partition is None else whole_number(partition, "a partition")
        if number is not None and not 0 <= number <= PARTITION_MAX:
            number = None  # No history may name it; the call raises.
        return self._start("send", topic=topic, partition=number, **fields)

    def _end(self, kind: str, do: Any) -> None:
        if self._transaction is None:
            do()  # Without a transaction it raises, and the history has no line for it.
        else:
            self._done(self._start(kind), do)

    def _done(self, call: Call, do: Any) -> None:
        try:
            do()
        except BaseException as error:
            call.raised(error)
            raise
        call.ok()

    def _of_transaction(self) -> dict[str, Any]:
        """Return the fields of a line that name the open transaction; none outside of one."""
        if self._transaction is None:
            return {}
        named = {"transaction": self._transaction, "transactional_id": self._transactional_id}
        return named | self._identity()

    def _identity(self) -> dict[str, int]:
        """Return the producer's id and epoch, once it has them."""
        producer_id = int(getattr(self._producer, "producer_id", -1))
        epoch = int(getattr(self._producer, "producer_epoch", -1))
        return {"producer_id": producer_id, "producer_epoch": epoch} if producer_id >= 0 else {}


def _items(column: Any) -> list[bytes | None]:
    """Return the cells of a column as bytes, of a table those of its values."""
    listed = column.to_pylist() if hasattr(column, "to_pylist") else column
    listed = listed.tolist() if hasattr(listed, "tolist") else listed
    cells = [one.get("value") if isinstance(one, dict) else one for one in listed]
    cells = [one.encode() if isinstance(one, str) else one for one in cells]
    return [one if one is None else bytes(one) for one in cells]


def _answer(result: Any, count: int) -> dict[str, Any]:
    """Return the offset of the first record, if the result gives those of all."""
    whole = isinstance(result, AppendResult) and (
        result.last_offset - result.base_offset + 1 == count
    )
    return {"offset": result.base_offset} if whole else {}
