"""The public view of one partition, over the engine's log of it."""

from typing import Never

from eoslog.bindings.partition_log import (
    AbortedTransaction,
    AppendResult,
    OpenTransaction,
    ProducerState,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, StoreReadOnlyError
from eoslog.storage.unified_log import UnifiedLog


class Partition:
    """View of one partition's log; `Store.partition(topic, number)` gives it.

    Offsets are of the whole log, whichever process wrote it. All offsets are exclusive bounds
    unless their name says `last`. Threads may share the object: reads take no lock, and go on while
    another thread appends.

    Everything but `topic_partition` and `topic_id` raises LogClosedError once the store is closed
    or the topic is deleted, and ForkedProcessError in a child of the process that opened the store.
    """

    __slots__ = ("_log", "_read_only")

    def __init__(self, log: UnifiedLog, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._log = log

    def __repr__(self) -> str:
        try:
            state = f"offsets {self.log_start_offset} to {self.log_end_offset}"
        except EoslogError:
            state = "closed"
        return f"<eoslog.Partition {self.topic_partition}, {state}>"

    def __reduce__(self) -> Never:
        raise TypeError("a partition cannot be pickled or copied: ask the store for it")

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and number of the partition."""
        return self._log.topic_partition

    @property
    def topic_id(self) -> str:
        """Id of the topic, as Kafka writes it: a topic made again under the name has another."""
        return self._log.topic_id

    @property
    def size_bytes(self) -> int:
        """Size of all batches, in bytes."""
        return self._log.size_bytes

    @property
    def log_start_offset(self) -> int:
        """Oldest offset that can be read."""
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """End of the records that a store of one copy shows: the log end."""
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """End of decided data: the first offset of the oldest open transaction, or of a staged job
        that is being adopted, else the high watermark.
        """
        return self._log.last_stable_offset

    def append_batch(
        self, batch: bytes | bytearray | memoryview, verified: bool = False
    ) -> AppendResult:
        """Append one raw batch of format 2 as a client builds it, under a leader's rules.

        On return it survives the death of the process, with durability "always" a power cut;
        `Store.flush` syncs it.

        Parameters
        ----------
        batch : bytes-like
            Bytes of one whole batch.
        verified : bool
            True if a transactional batch may open its producer's transaction here. The caller must
            have registered the partition with the transaction's coordinator, or nothing will ever
            end the transaction. Else the transaction must be open here.

        Returns
        -------
        AppendResult
            Offsets of the records. A duplicate gets those of the first write.

        Raises
        ------
        InvalidTxnStateError
            The transaction is not open here. Nothing was written, as with all errors here.
        CorruptRecordError, InvalidRecordError, InvalidTimestampError
            The batch is damaged, or not one that the topic takes.
        RecordTooLargeError, RecordBatchTooLargeError
            The batch is larger than the topic's `max.message.bytes`, or than a segment.
        OutOfOrderSequenceError, InvalidProducerEpochError
            A batch before this one is missing, or its producer is fenced.
        StoreError
            The disk is full, or refused the write; or the store is only read.
        """
        if self._read_only:
            raise StoreReadOnlyError("the store was opened with read_only=True")
        return self._log.append_batch(batch, verified)

    def read(
        self, offset: int, max_bytes: int = 1 << 20, isolation_level: str = "read_uncommitted"
    ) -> bytes:
        """Return whole batches as they stand in the log, from the one that holds an offset on.

        Parameters
        ----------
        offset : int
            Offset from which to read; the first batch may begin below it.
        max_bytes : int
            Size at which to stop, in bytes. One batch is returned, whatever its size.
        isolation_level : {"read_uncommitted", "read_committed"}
            With "read_committed" the batches of aborted transactions are left out, and what is
            undecided; markers are returned.

        Returns
        -------
        bytes
            The batches; empty at the end of the log.

        Raises
        ------
        OffsetOutOfRangeError
            The log does not hold the offset.
        CorruptRecordError
            The bytes are damaged, or lost.
        UnsupportedCompressionTypeError
            The next batch is compressed.
        """
        return self._log.read(offset, max_bytes, isolation_level)

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation_level: str = "read_uncommitted"
    ) -> tuple[int, int] | None:
        """Return the first record at or after a time.

        As in Kafka a record of an aborted transaction may be found; reading from there passes it. A
        transaction's marker is never found, which is not as in Kafka (rule R4).

        Parameters
        ----------
        timestamp_ms : int
            Time in milliseconds, 0 or more.
        isolation_level : {"read_uncommitted", "read_committed"}
            With "read_committed" decided data alone is searched.

        Returns
        -------
        tuple of int, or None
            Offset and timestamp in milliseconds; None if there is no such record.

        Raises
        ------
        ValueError
            The time is below 0 or beyond 64 bits, or there is no such isolation level.
        """
        return self._log.offset_for_timestamp(timestamp_ms, isolation_level)

    def segments(self) -> list[dict[str, object]]:
        """Return one dict a segment: base_offset, size_bytes, largest_timestamp_ms, path.

        The largest timestamp is that of the segment's records. Where none has one, it is the time
        when the file was last written to.
        """
        return self._log.segments()

    def producers(self) -> list[ProducerState]:
        """Return the states of all producers, ordered by id."""
        return self._log.producers()

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that are open here, in the order of their first offsets."""
        return self._log.open_transactions()

    def aborted_transactions(self, first: int, last: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with offsets from `first` to `last` (inclusive)."""
        return self._log.aborted_transactions(first, last)

    def verify(self) -> list[dict[str, object]]:
        """Check every batch and index entry, the producers' sequences and epochs, and what memory,
        snapshots and LMDB have of them.

        Returns
        -------
        list of dict
            `path`, `position_bytes` and `reason` of each problem; [] for a sound partition.
        """
        return self._log.verify()
