"""Every error of eoslog: what became of the data, and what to do next.

A caller asks one thing first: was it written? `outcome` answers it:

- "not_appended": nothing of the call was written;
- "unknown": it may or may not have been written; ask the log before trying again;
- "damaged": bytes that were written earlier can no longer be read.

It and the other attributes of `EoslogError` are those of the class, but for an error of
`Store.close()` after the last append: "unknown", and not retriable, as the store is closed.

All errors can be pickled. This module imports nothing of eoslog.
"""

from typing import ClassVar, Literal

Outcome = Literal["not_appended", "unknown", "damaged"]

NO_ERROR_CODE = -1


class EoslogError(Exception):
    """The root of all errors of eoslog: look at `outcome`, then at `retriable` and `fatal`."""

    #: What became of the data: "not_appended", "unknown" or "damaged".
    outcome: Outcome = "not_appended"
    #: Kafka's error code, -1 where Kafka has none.
    code: ClassVar[int] = NO_ERROR_CODE
    #: The same call may succeed later.
    retriable: bool = False
    #: The transaction must be aborted; the producer goes on.
    abortable: ClassVar[bool] = False
    #: The object that raised can do nothing more; make a new one.
    fatal: ClassVar[bool] = False


class KafkaError(EoslogError):
    """An error that Kafka has too, under the same name and with the same code."""


class CommitFailedError(EoslogError):
    """The group was rebalanced since these records were read. Nothing was committed: abort, and
    read from the group's offsets.

    It is raised as IllegalGenerationError or UnknownMemberIdError.
    """

    abortable = True


class OffsetOutOfRangeError(KafkaError):
    """The offset is below the log's start or beyond its end: seek to one that exists."""

    code = 1


class CorruptRecordError(KafkaError):
    """Bytes of the log, or of a batch that was handed in, are not what was written.

    A batch that was handed in is not appended: send an undamaged one. A damaged file stays as it
    is: `Partition.verify()` lists all damage; restore the file from a copy.

    Parameters
    ----------
    path : str
        The file; "" for bytes in memory.
    position_bytes : int
        Place in it.
    reason : str
        What is wrong there.
    """

    outcome = "damaged"
    code = 2

    path: str
    position_bytes: int
    reason: str

    def __init__(self, path: str = "", position_bytes: int = 0, reason: str = "corrupt") -> None:
        place = f"{path} at byte {position_bytes}" if path else f"byte {position_bytes}"
        super().__init__(f"{place}: {reason}")
        self.path = path
        self.position_bytes = position_bytes
        self.reason = reason

    def __reduce__(self) -> tuple[type["CorruptRecordError"], tuple[str, int, str]]:
        return type(self), (self.path, self.position_bytes, self.reason)


class UnknownTopicOrPartitionError(KafkaError):
    """The store has no such topic or partition: create it, or correct the name."""

    code = 3
    retriable = True


class RecordTooLargeError(KafkaError):
    """A record or batch exceeds `max.message.bytes`: make it smaller, or raise the limit."""

    code = 10


class OffsetMetadataTooLargeError(KafkaError):
    """The text beside a committed offset is longer than `offset.metadata.max.bytes`."""

    code = 12


class CoordinatorNotAvailableError(KafkaError):
    """The group or transaction is just being removed: try again shortly."""

    code = 15
    retriable = True


class InvalidTopicError(KafkaError):
    """Kafka refuses this topic name: use 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'."""

    code = 17


class RecordBatchTooLargeError(KafkaError):
    """The batch does not fit into one segment: send smaller ones, or raise `segment.bytes`."""

    code = 18


class IllegalGenerationError(CommitFailedError, KafkaError):
    """The group has another generation than the caller's: it was rebalanced since."""

    code = 22
    abortable = True


class InconsistentGroupProtocolError(KafkaError):
    """The members of the group have no assignment strategy in common with this one: add one to
    `partition.assignment.strategy`.
    """

    code = 23


class UnknownMemberIdError(CommitFailedError, KafkaError):
    """The group has no such member (any longer): join it again."""

    code = 25
    abortable = True


class InvalidTimestampError(KafkaError):
    """A timestamp is outside the topic's limits, or negative: nothing of the batch was written."""

    code = 32


class TopicAlreadyExistsError(KafkaError):
    """The topic exists already: use it, or delete it first."""

    code = 36


class InvalidPartitionsError(KafkaError):
    """The number of partitions is not a positive number the store can hold."""

    code = 37


class InvalidConfigError(KafkaError, ValueError):
    """A configuration has an unknown name, a wrong type or a value out of its range."""

    code = 40


class InvalidRequestError(KafkaError, ValueError):
    """The arguments contradict each other, or a name that is needed is empty."""

    code = 42
    fatal = True


class UnsupportedForMessageFormatError(KafkaError):
    """The batch is of an older record format (magic 0 or 1): send format 2."""

    code = 43


class OutOfOrderSequenceError(KafkaError):
    """The sequence is neither the next one nor that of a remembered batch. Nothing was appended.

    A batch before this one is missing, or this one is older than the last five of its producer.
    Go on from `Producer.next_sequence`.
    """

    code = 45


class DuplicateSequenceNumberError(KafkaError):
    """Kafka's older answer to a batch that is in the log; eoslog answers with its offsets."""

    code = 46


class InvalidProducerEpochError(KafkaError):
    """The partition has seen a newer epoch of this producer id: this producer was replaced."""

    code = 47
    abortable = True


class InvalidTxnStateError(KafkaError):
    """The call does not fit the transaction's state; the producer made a call out of order."""

    code = 48
    fatal = True


class InvalidProducerIdMappingError(KafkaError):
    """The producer id is not the one that the name or transactional id has now."""

    code = 49
    fatal = True


class InvalidTransactionTimeoutError(KafkaError, ValueError):
    """The timeout is not above 0, or is above the store's `transaction.max.timeout.ms`."""

    code = 50
    fatal = True


class ConcurrentTransactionsError(KafkaError):
    """Another transaction of the same id is still being completed: try again shortly."""

    code = 51
    retriable = True


class TransactionCoordinatorFencedError(KafkaError):
    """Another coordinator, with a newer epoch, has ended the producer's transactions there.

    A refused marker was not written. A commit or an abort is decided, and holds in the other
    partitions; in the partition that the error names, the other coordinator's decision holds. If
    `outcome` is "not_appended", nothing was decided, and the transaction stays prepared.
    """

    code = 52
    fatal = True


class OperationNotAttemptedError(KafkaError):
    """Another partition of the same call was refused, so this one was not tried."""

    code = 55
    abortable = True


class KafkaStorageError(KafkaError):
    """The disk refused an operation on a partition. Whether an append reached it is not known."""

    outcome = "unknown"
    code = 56
    retriable = True


class UnknownProducerIdError(KafkaError):
    """The partition no longer knows this producer id: its records were deleted or it expired."""

    code = 59
    abortable = True


class NonEmptyGroupError(KafkaError):
    """The group has members: close their consumers first."""

    code = 68


class GroupIdNotFoundError(KafkaError):
    """The store knows no group of this name."""

    code = 69
    fatal = True


class UnsupportedCompressionTypeError(KafkaError):
    """A batch is compressed: this version reads and appends uncompressed batches only.

    The batch is not damaged, and stays as it is: read it with Kafka, or seek past it. A batch that
    was handed in is not appended: send it uncompressed.

    Parameters
    ----------
    path : str
        The file; "" for bytes in memory.
    position_bytes : int
        Place in it.
    codec : str
        Compression type: "gzip", "snappy", "lz4" or "zstd".
    """

    code = 76

    path: str
    position_bytes: int
    codec: str

    def __init__(self, path: str = "", position_bytes: int = 0, codec: str = "unknown") -> None:
        self.path = path
        self.position_bytes = position_bytes
        self.codec = codec
        place = f"{path} at byte {position_bytes}: " if path else "the batch is "
        super().__init__(f"{place}{self.reason}")

    @property
    def reason(self) -> str:
        """Text about the batch."""
        return f"compressed with {self.codec}: this version cannot read it"

    def __reduce__(self) -> tuple[type["UnsupportedCompressionTypeError"], tuple[str, int, str]]:
        return type(self), (self.path, self.position_bytes, self.codec)


class FencedInstanceIdError(KafkaError):
    """Another member has taken over this static member's place."""

    code = 82
    abortable = True


class GroupSubscribedToTopicError(KafkaError):
    """A member of the group reads the topic: close its consumer first."""

    code = 86


class InvalidRecordError(KafkaError):
    """A record or batch breaks a rule of the format; the whole batch was refused."""

    code = 87


class UnstableOffsetCommitError(KafkaError):
    """The group's offset waits for a transaction that is not decided: ask again shortly."""

    code = 88
    retriable = True


class ProducerFencedError(KafkaError):
    """A newer producer of the same name or id has taken over; the message names it and the time.

    Nothing of this call was written. Close this producer.
    """

    code = 90
    fatal = True


class TransactionalIdNotFoundError(KafkaError):
    """The store knows no such transactional id; it may have expired."""

    code = 105


class TransactionAbortableError(KafkaError):
    """The transaction cannot go on: abort it and begin again."""

    code = 120
    abortable = True


class TransactionAbortedError(EoslogError):
    """The transaction was aborted; its records will never be read as committed."""

    abortable = True


class IllegalStateError(EoslogError, RuntimeError):
    """The call does not fit the object's state (a `send` without a transaction).

    The call did nothing: call what is missing first.
    """


class ConcurrentAccessError(EoslogError, RuntimeError):
    """Two threads used an object at once that takes one call at a time. This call did nothing.

    Give each thread its own object, or use a lock. It is also raised in a signal handler, and in
    any other call inside a call of the same thread.
    """


class NoOffsetForPartitionError(EoslogError):
    """There is no position to start from and `auto_offset_reset` is "none": seek first."""


class StoreError(EoslogError):
    """An error of the store itself: its directory, its lock, its disk."""


class NotAStoreError(StoreError):
    """The path is not a store: correct it, or open an empty directory with `create=True`."""

    fatal = True


class StoreInUseError(StoreError):
    """Another process or object uses the store; the message names it, and why it is in the way.

    It has the store open with other settings, on another host or by another object; or it has been
    opening or closing the store, or holding one of its locks, for too long. Nothing was done: try
    again later.
    """

    retriable = True


class FellBehindError(StoreError):
    """Segments were deleted before this process, which was stopped or busy, had read them.

    The partition is reattached within a second: try again. `appended_record_count`, if there is
    one, is the number of records of this call that are in the log.
    """

    retriable = True


class ExportRefusedError(StoreError):
    """The store cannot be exported as it is, or not to that place; the message gives the reason.
    Nothing was written.
    """


class StoreVersionError(StoreError):
    """The store was written by a newer eoslog: install that version or a newer one."""

    fatal = True


class StoreFullError(StoreError):
    """There is no space on the device. Nothing was written; the store stays readable.

    Free space, or wait for retention, then make the same call again.
    """

    retriable = True


class OutOfMemoryError(StoreError, MemoryError):
    """The system gave no memory, or no room in the address space. Nothing was written.

    Free some, or raise the limit, then make the same call again. It is a MemoryError too.
    """

    retriable = True


class StoreReadOnlyError(StoreError):
    """The file system or the store's directory cannot be written to: change that, then reopen. Or
    the store was opened with `read_only=True`: open it without.
    """

    fatal = True


class StoreReopenedError(StoreError):
    """A store that is only read was opened by another process since, which may have changed it.

    What was read is right as of then. Open it again, and go on at the same positions.
    """

    fatal = True


class RecoveryNeededError(StoreError):
    """After a power cut records may be in commit journals alone, which reading does not write back:
    open the store once without `read_only`.
    """

    fatal = True


class StoreFailedError(StoreError):
    """A sync failed: what the disk holds is unknown, and nothing more is appended until recovery.

    Close the store in all processes and open it again: this recovers what is whole. Then a named
    producer goes on from `next_sequence`; for other producers, read what is there.
    """

    outcome = "unknown"
    fatal = True


class LogClosedError(StoreError):
    """The store, partition, producer or consumer is closed: open a new one."""

    fatal = True


class ForkedProcessError(StoreError):
    """A store opened before a fork was used in the child: open it again in the child.

    The parent may still have it open.
    """

    fatal = True


class StagedCommitError(EoslogError):
    """A staged commit was refused before its decision: nothing of the job is in the log.

    The message names the file or the id that is wrong. Stage the job again under a new run id.
    """


class StagedRunFencedError(StagedCommitError):
    """A newer run of the same application has taken over: this run must stop."""

    code = 90
    fatal = True


class StagedSourceError(StagedCommitError):
    """The versions of a job are counted by another source, for example since a stream's checkpoint
    was deleted or moved. Nothing of the job is in the log.

    Give the job an application id of its own, or allow the new count, which then follows the old
    one.
    """

    fatal = True


class StagedReplayError(StagedSourceError):
    """The number of an application's newest version came again, with other content.

    For example, an older copy of a stream's checkpoint was restored, or a power cut took its newest
    entries. Nothing of this content is in the log.
    """


class StagedJobIncompleteError(StoreError):
    """A staged job is decided, but not all of it is in the log yet; readers see nothing of it.

    The decision stands: do not write the data again. Remove the cause that the message names (a
    full disk, for example). Then the next commit, the background thread or the next opening of the
    store completes the job.
    """

    outcome = "unknown"
    retriable = True


class SourceFileChangedError(EoslogError):
    """A file to import does not begin as it did when its beginning was imported. Nothing of it was
    imported now: if it is another file, import it under another name.
    """


class ArrowStreamError(EoslogError):
    """The producer of an Arrow stream that was given to `append` reports an error, which is in the
    message. The records of the chunks before it are in: `appended_record_count` of them.
    """


class MissingDependencyError(EoslogError, ImportError):
    """An optional package is not installed; the message says which extra brings it."""
