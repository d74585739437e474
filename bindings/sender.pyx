# cython: language_level=3
"""The hot path of a producer's send(): a record is encoded into its partition's batch.

A subclass in Python opens topics and appends full batches. Threads may share a sender: adding a
record runs no Python code, and so no other thread, from its first look to its last store. All else
needs `_lock`; a thread that would add a record then waits for it, since the engine may be reading
the batches without the GIL.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.bindings.accumulator cimport (
    Accumulator, BatchReport, PartitionBuffer, RecordAccumulator, TopicBuffers,
    record_bytes_bound)
from eoslog.bindings.client_transaction cimport ClientTransaction
from eoslog.bindings.columns cimport encode_headers
from eoslog.bindings.partition_log cimport AppendResult, PartitionLog
from eoslog.bindings.sequenced_log cimport SequencedLog
from eoslog.bindings.thread_lock cimport ThreadLock
from eoslog.native.mapped_io cimport eos_elapsed_ms, eos_now_ms
from eoslog.native.murmur2 cimport murmur2 as hash_of
from eoslog.native.murmur2 cimport partition_for_hash
from eoslog.native.record_batch cimport BATCH_HEADER_BYTES

cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()

cdef enum:
    NO_PARTITION = -1


@cython.final
@cython.freelist(8)
cdef class Transaction:
    """The block of one transaction: begun where it starts, committed at its end.

    An exception in the block aborts the transaction; so does a commit that failed and left it to be
    aborted. A transaction that the block itself ended or prepared is left as it is.
    """

    cdef Sender _sender

    def __repr__(self):
        return f"<eoslog transaction of {self._sender!r}>"

    def __enter__(self):
        self._made().begin_transaction()
        return self._sender

    cdef Sender _made(self):
        if self._sender is None:
            raise TypeError("a producer makes its transactions: call transaction()")
        return self._sender

    def __exit__(self, error_type, error, traceback):
        cdef Sender sender = self._made()
        cdef ClientTransaction transactions = sender._client()
        if error_type is None and transactions._state == transactions._open:
            try:
                sender.commit_transaction()
            except BaseException as failure:
                sender._abort_after(failure)
                raise
        elif error_type is not None:
            sender._abort_after(error)
        else:
            try:
                transactions.leave_block()
            finally:
                sender._settle()


cdef class Sender:
    """Gathers records into batches; a subclass opens topics and appends the batches."""

    cdef readonly Accumulator _accumulator
    cdef readonly ThreadLock _lock
    cdef public ClientTransaction _transactions  # None without a transactional id.
    cdef dict _ready                         # SequencedLog by (topic, partition).
    cdef public dict _unsynced               # Partition -> up to where this sender wrote to it.
    cdef public object _deliveries           # None until a record has a function to call.
    cdef readonly list _unsettled            # The records with one, as its `Delivery` has them.

    def __cinit__(self, *arguments, **named):
        self._accumulator = Accumulator()
        self._lock = self._accumulator.lock
        self._transactions = None
        self._ready = {}
        self._unsynced = {}
        self._deliveries = None
        self._unsettled = []

    def send(self, str topic not None, value=None, key=None, partition=None, headers=None,
             timestamp_ms=None, on_delivery=None):
        """Add one record to the batch of its partition; a full batch is appended first.

        The record is in the log once its batch is full, once it waited for `linger.ms`, or once
        flush() returned, and durable once flush() returned.

        Parameters
        ----------
        topic : str
        value, key : bytes or None
        partition : int, optional
            By default a key chooses it as in Kafka; records without a key keep to one partition
            until its batch is full.
        headers : list of (str, bytes or None), optional
        timestamp_ms : int, optional
            0 or more, -1 for none; by default now.
        on_delivery : callable, optional
            Called once, as `on_delivery(error, metadata)`: with None and the record's
            RecordMetadata, or with the error and an offset of -1. The flush or close that settles
            the record calls it, in transactions the commit, abort or close, in its own thread. It
            may call the producer; what it raises is logged.

        Raises
        ------
        TypeError, ValueError, RecordTooLargeError, UnknownTopicOrPartitionError
            An argument is wrong; the record was not taken.
        ProducerFencedError, LogClosedError, or the error of appending the batch before it
            The record was not taken.
        """
        cdef int64_t timestamp
        cdef Py_ssize_t given
        cdef bytes encoded = None
        if timestamp_ms is None:
            timestamp = eos_now_ms()
        else:
            if timestamp_ms is True or timestamp_ms is False:
                raise TypeError("timestamp_ms must be an int (milliseconds), got bool")
            try:
                given = timestamp_ms
            except OverflowError:
                raise ValueError(f"timestamp_ms {timestamp_ms} is beyond 64 bits") from None
            timestamp = given
            if timestamp < -1:
                raise ValueError(f"timestamp_ms must be 0 or more, got {timestamp}")
        if headers is not None:
            encoded = encode_headers(headers)
        if on_delivery is not None:
            self._check_on_delivery(on_delivery)
        try:
            if self._lock._owner != 0 or not self._add(
                    topic, value, key, partition, encoded, timestamp, on_delivery, False):
                # Python code runs on this way: a full batch is appended, or another thread appends
                # just now. The holder of the lock sees no other record come or go.
                with self._lock:
                    self._add(
                        topic, value, key, partition, encoded, timestamp, on_delivery, True)
        except Exception as error:
            with self._lock:
                self._failed(error)
            raise
        if not self._accumulator._lingering:
            self._accumulator._lingering = True
            self._start_lingering()

    # Transactions.

    def transaction(self):
        """A block that is one transaction: begun here, committed at its end.

        An exception in the block aborts the transaction and is raised on. If the commit itself
        fails, the transaction is aborted where that can be, and the commit's error is raised. A
        transaction that the block itself ended or prepared is left as it is.
        """
        cdef Transaction made
        self._client()
        made = Transaction.__new__(Transaction)
        made._sender = self
        return made

    def begin_transaction(self):
        """Begin a transaction; nothing is written, and its timeout starts with its first record.

        Raises
        ------
        IllegalStateError
            init_transactions() was not called, or a transaction is open, which goes on.
        TransactionAbortableError
            The open transaction must be aborted first.
        ProducerFencedError, LogClosedError
        """
        cdef ClientTransaction transactions = self._client()
        # Runs no Python code where all is well, and so no other thread.
        if self._lock._owner != 0 or not transactions.may_begin():
            with self._lock:
                transactions.check_begin()
                transactions.begin()
        else:
            transactions.begin()

    def commit_transaction(self):
        """Append what was gathered and commit: all of the transaction becomes visible, or nothing.

        On return the decision is as durable as the store's durability says. A transaction without
        records and offsets writes nothing. After an error before the decision call
        abort_transaction(): a part is never committed.

        Raises
        ------
        IllegalStateError
            No transaction is open.
        TransactionAbortableError
            A call in the transaction failed.
        ProducerFencedError
            The id was taken over, or the transaction passed its timeout and was aborted.
        StoreFailedError
            The next opening of the store finds out if the transaction is committed.
        LogClosedError, or the error of a batch that was refused
        """
        cdef ClientTransaction transactions = self._client()
        transactions.check_end()
        try:
            self._lock.take(True)
            try:
                transactions.commit()
            finally:
                self._lock.give()
        finally:
            self._settle()

    cdef ClientTransaction _client(self):
        if self._transactions is None:
            self._no_transactions()
        return self._transactions

    cdef int _settle(self) except -1:
        """Call the functions of the records of transactions that have ended."""
        if self._deliveries is not None:
            self._report_transactions()
        return 0

    cdef int _abort_after(self, error) except -1:
        """Abort what is open, if anything is, because of an error that is raised on."""
        self._client().abort_after(error)
        return self._settle()

    cdef bint _add(self, str topic, object value, object key, object partition, bytes headers,
                   int64_t timestamp, object on_delivery, bint may_drain) except -1:
        """Add the record; False if a batch has to be appended first and may not be.

        Runs no Python code unless may_drain, so that no other thread comes in between.
        """
        cdef TopicBuffers buffers
        cdef PartitionBuffer buffer
        cdef int64_t held_bytes
        cdef int32_t chosen
        cdef Py_ssize_t asked        # The index protocol: a float is no partition.
        if not self._accumulator._takes_records:
            self._check_appendable()
        found = self._accumulator._topics.get(topic)
        if found is None:
            if not may_drain:
                return False
            found = self._add_topic(topic)
            if not self._accumulator._takes_records:
                self._check_appendable()           # A call within it closed the sender.
        buffers = <TopicBuffers?>found
        if partition is not None:
            try:
                asked = partition
            except OverflowError:
                asked = NO_PARTITION
            if not 0 <= asked < buffers.partition_count:
                if not may_drain:
                    return False
                self._find_partition(topic, partition)
                return self._add(
                    topic, value, key, partition, headers, timestamp, on_delivery, may_drain)
            chosen = <int32_t>asked
        elif key is None:
            chosen = buffers.sticky_partition
        elif type(key) is bytes:
            chosen = partition_for_hash(
                hash_of(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)),
                buffers.partition_count)
        else:
            raise TypeError(f"key must be bytes or None, got {type(key).__name__}")
        buffer = <PartitionBuffer>buffers.buffers[chosen]
        held_bytes = buffer.accumulator._used_bytes
        if held_bytes > BATCH_HEADER_BYTES and held_bytes + record_bytes_bound(
                value, key, headers) > self._accumulator._batch_bytes:
            if not may_drain:
                return False
            self._drain(buffer)
            if not self._accumulator._takes_records:
                self._check_appendable()
            if partition is None and key is None:
                buffers.sticky_partition = (chosen + 1) % buffers.partition_count
        buffer.accumulator.add_record(value, key, headers, timestamp)
        if buffer.accumulator._record_count == 1:
            buffer.first_ms = eos_elapsed_ms()
            if not buffer.listed:
                buffer.listed = True
                self._accumulator._listed.append(buffer)
                if self._accumulator._first_ms < 0:
                    self._accumulator._first_ms = buffer.first_ms
        if on_delivery is not None:
            self._expect(buffer, timestamp, on_delivery)
        return True

    cdef int _expect(self, PartitionBuffer buffer, int64_t timestamp, object on_delivery) except -1:
        """The record that was added last has a function to call."""
        cdef RecordAccumulator records = buffer.accumulator
        # A collection runs finalizers, and with them maybe a thread that appends the batch.
        cdef int collects = PyGC_Disable()
        try:
            if records.report is None:
                records.report = BatchReport.__new__(BatchReport)
                if self._transactions is not None:
                    records.report.transaction = self._transactions.report()
            self._unsettled.append((
                records.report, records._record_count - 1, buffer.topic, buffer.partition,
                timestamp, on_delivery))
        finally:
            if collects:
                PyGC_Enable()
        return 0

    def _append_few(self, topic, partition, values):
        """Append a few values to a partition that was written to: an AppendResult.

        None where that needs more than the partition's log; nothing was done then.
        """
        cdef SequencedLog ready
        cdef PartitionLog log
        cdef AppendResult result
        if type(topic) is not str or type(partition) is not int:
            return None
        found = self._ready.get((topic, partition))
        if found is None or not self._accumulator._takes_records:
            return None
        ready = <SequencedLog?>found
        log = ready.log_for(values)
        if log is None:
            return None
        self._lock.take(True)
        try:
            if not self._accumulator._takes_records or ready.in_doubt or (
                    self._accumulator.holds(topic, partition)):
                return None
            try:
                result = ready.append_values(log, values)
                if result.duplicate:
                    ready.refuse_duplicate(result)
            except Exception as error:
                self._append_failed(ready, error)
                return None
            self._unsynced[ready.partition] = result.last_offset + 1
            if not ready.partition._change_noted:
                ready.partition.note_append()
            return result
        finally:
            self._lock.give()

    def __reduce__(self):
        raise TypeError("a producer cannot be pickled or copied: make one where it is needed")

    def _set_ready(self, dict ready not None):
        """By (topic, partition): the SequencedLogs that _append_few may use."""
        self._ready = ready

    def _add_topic(self, topic):
        """Open a topic: have the accumulator keep it and return its TopicBuffers, or raise."""
        raise NotImplementedError

    def _drain(self, buffer):
        """Append what a buffer holds, and empty it."""
        raise NotImplementedError

    def _failed(self, error):
        """A record was refused with this error, which is raised next. The caller holds the lock."""

    def _append_failed(self, ready, error):
        """An append of a few values was refused: raise, or do nothing and it goes the long way."""
        raise NotImplementedError

    def _check_on_delivery(self, on_delivery):
        """Have `_deliveries`; raise TypeError for a function that cannot be called so."""
        raise NotImplementedError

    def _report_transactions(self):
        """Call the functions of the records of transactions that have ended."""
        raise NotImplementedError

    def _start_lingering(self):
        """Records wait from now on."""
        raise NotImplementedError

    def _check_appendable(self):
        """Raise the error for a record that is not taken now."""
        raise NotImplementedError

    def _no_transactions(self):
        """Raise the error for a call of transactions without a transactional id."""
        raise NotImplementedError

    def _find_partition(self, topic, partition):
        """Raise the error for a partition that does not exist; have buffers for one that was added
        to the topic.
        """
        raise NotImplementedError
