# cython: language_level=3
"""State that the coordinator knows of one transactional id: its newest record, and its partitions'
logs.

In memory the state is that of the newest record in the state log; a change is written there first.
"""

from eoslog import errors

from eoslog.bindings.transaction_record import STATE_NAMES, transaction_key

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from eoslog.bindings.status cimport fault_error
from eoslog.bindings.transaction_record cimport decode_value, owner_of, topic_of
from eoslog.native.control_page cimport control_flag
from eoslog.native.status cimport (
    STATUS_CLOSED, STATUS_FAILED, STATUS_FELL_BEHIND, STATUS_INVALID_TXN_STATE, STATUS_IO,
    STATUS_NO_MEMORY, STATUS_PRODUCER_NOT_CACHED,
)
from eoslog.native.transaction_log cimport (
    part_listed, transaction_add_part, transaction_find_part, transaction_free, transaction_init,
    transaction_remove_part,
)
from eoslog.native.transaction_state cimport (
    TRANSACTION_DEAD, TRANSACTION_ONGOING, TransactionState, is_prepare, state_data_epoch,
)
from eoslog.native.transaction_state cimport TransactionPart as NativePart


class PartitionLost(Exception):
    """The log of one of the transaction's partitions is closed, or was never attached.

    Look whether the topic was deleted: drop the partition, or attach it again; then call again.
    """

    def __init__(self, topic, partition):
        super().__init__(f"{topic}-{partition} is not open")
        self.topic = topic
        self.partition = partition

    def __reduce__(self):
        return PartitionLost, (self.topic, self.partition)


@cython.final
cdef class TransactionPart:
    """One partition as transactions write to it; entries may share it. Its log has to be open."""

    def __cinit__(self, str topic not None, Py_ssize_t partition, PartitionLog log not None):
        self._topic_bytes = topic.encode()
        if not 0 < len(self._topic_bytes) <= 0x7FFF:
            raise ValueError(f"topic must have 1 to 32767 bytes, got {len(self._topic_bytes)}")
        if not 0 <= partition <= 0x7FFFFFFF:
            raise ValueError(f"partition {partition} is outside [0, 2**31)")
        log._check_open()
        self.topic = topic
        self.partition = <int>partition
        self.log = log

    def __repr__(self):
        return f"TransactionPart({self.topic!r}, {self.partition})"


cdef int32_t find_part(const Transaction* txn, TransactionPart part) noexcept:
    return transaction_find_part(
        txn, <const uint8_t*>PyBytes_AS_STRING(part._topic_bytes),
        <int32_t>PyBytes_GET_SIZE(part._topic_bytes), part.partition)


cdef void fault_init(Fault* fault) noexcept:
    memset(fault, 0, sizeof(Fault))
    fault.base_offset = -1


cdef class KnownTransaction:
    """One transactional id as the newest record has it, and the logs of its partitions."""

    def __cinit__(self, str transactional_id not None, PartitionLog state_log not None,
                  bint durable, EntryLock lock=None):
        transaction_init(&self._txn)
        state_log._check_open()
        self._key = transaction_key(transactional_id)
        self.transactional_id = transactional_id
        self.lock = EntryLock(None, transactional_id) if lock is None else lock
        self._state_log = state_log
        self._held = []
        self._txn.key = <const uint8_t*>PyBytes_AS_STRING(self._key)
        self._txn.key_bytes = PyBytes_GET_SIZE(self._key)
        self._txn.state_log = &state_log._log
        self._txn.durable = durable

    def __dealloc__(self):
        transaction_free(&self._txn)

    def __repr__(self):
        return (f"{type(self).__name__}({self.transactional_id!r}, {self.state}, "
                f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch})")

    # What it knows.

    @property
    def producer_id(self):
        return self._txn.state.producer_id

    @property
    def producer_epoch(self):
        return self._txn.state.producer_epoch

    @property
    def data_epoch(self):
        """The epoch of the open or undecided transaction's batches; a decision has a higher one."""
        return state_data_epoch(&self._txn.state)

    @property
    def last_producer_epoch(self):
        """The epoch before the last bump, -1 if that bump must not be repeated."""
        return self._txn.state.last_producer_epoch

    @property
    def previous_producer_id(self):
        """The producer id before the last rotation, -1 if there was none."""
        return self._txn.state.previous_producer_id

    @property
    def next_producer_id(self):
        """The producer id after this transaction's end, -1 if it stays."""
        return self._txn.state.next_producer_id

    @property
    def next_producer_epoch(self):
        return self._txn.state.next_producer_epoch

    @property
    def timeout_ms(self):
        """2147483647: never timed out."""
        return self._txn.state.timeout_ms

    @property
    def state(self):
        """The state's name."""
        return STATE_NAMES[self._txn.state.status]

    @property
    def owner(self):
        """The slot of the process whose producer has the id, None if there is none."""
        return owner_of(&self._txn.state)

    @property
    def prepared(self):
        """True if the open transaction waits for a decision from outside."""
        return bool(self._txn.state.prepared)

    @property
    def last_update_ms(self):
        return self._txn.state.last_update_ms

    @property
    def start_ms(self):
        """Time when the transaction began, -1 when Empty."""
        return self._txn.state.start_ms

    @property
    def partitions(self):
        """(topic, partition) of each partition of the open or undecided transaction, in order."""
        cdef int64_t record_offset = -2
        cdef int32_t part_count = 0
        cdef int32_t index, partition
        cdef list found = []
        # A thread without the GIL may be ending the transaction: then what was read is half of it.
        while record_offset != self._txn.record_offset or part_count != self._txn.part_count:
            record_offset = self._txn.record_offset
            part_count = self._txn.part_count
            found = []
            index = 0
            while index < self._txn.part_count:
                partition = self._txn.parts[index].partition
                if part_listed(&self._txn, &self._txn.parts[index]):
                    found.append(
                        (topic_of(&self._txn.parts[index], self._state_log.path), partition))
                index += 1
        return found

    @property
    def record_offset(self):
        """Offset of the newest record in the state log, -1 if there is none."""
        return self._txn.record_offset

    @property
    def prepare_offset(self):
        """Offset of the decision while its markers are not all written, else -1."""
        return self._txn.prepare_offset

    @property
    def changed(self):
        """True if a record was written since mark_persisted(); load() does not count."""
        return bool(self._txn.changed)

    def mark_persisted(self):
        """Note that what value() answers is written down elsewhere."""
        self._txn.changed = False

    def value(self):
        """The newest record's value as it stands in the log; empty if there is none."""
        if self._txn.value_bytes == 0:
            return b""
        return PyBytes_FromStringAndSize(<const char*>self._txn.value, self._txn.value_bytes)

    def read(self):
        """(state, changed, value, record_offset, prepare_offset), as this process knows them now.

        It does not wait for another process that works on the id. While that one has the lock, what
        is known here does not change: a thread that gets it next waits for the GIL, which is held
        until all is read.
        """
        if self.lock._try() == 0:
            self.lock._enter()
        elif self.lock._is_held_here():
            self.lock.take()
        else:
            return self._read()
        try:
            return self._read()
        finally:
            self.lock.give()

    cdef tuple _read(self):
        return (self.state, self.changed, self.value(), self._txn.record_offset,
                self._txn.prepare_offset)

    # Taken over from the log.

    def load(self, const uint8_t[::1] value not None, Py_ssize_t offset):
        """Take a record's value as the newest state; logs of its partitions are attached later.

        A copy of what is known changes nothing but the offset: the open transaction goes on. Raises
        CorruptRecordError, and the entry is as it was.
        """
        cdef TransactionState state
        cdef int32_t version = 0
        cdef str path = self._state_log.path
        cdef NativePart* parts = decode_value(value, path, &state, &version)
        cdef uint8_t* kept = NULL
        cdef list topics
        cdef int32_t index
        if (self._txn.record_offset >= 0 and value.shape[0] == self._txn.value_bytes
                and memcmp(&value[0], self._txn.value, <size_t>value.shape[0]) == 0):
            free(parts)
            self._txn.record_offset = offset
            self._txn.prepare_offset = offset if is_prepare(state.status) else -1
            return
        try:
            topics = [topic_of(&parts[index], path).encode()
                      for index in range(state.partition_count)]
        finally:
            free(parts)
        kept = <uint8_t*>malloc(<size_t>value.shape[0])
        if kept == NULL:
            raise errors.OutOfMemoryError(f"a record of {value.shape[0]} bytes")
        memcpy(kept, &value[0], <size_t>value.shape[0])
        free(self._txn.value)
        self._txn.value = kept
        self._txn.value_bytes = self._txn.value_capacity = value.shape[0]
        self._txn.record_offset = offset
        self._txn.prepare_offset = offset if is_prepare(state.status) else -1
        self._txn.part_count = 0
        self._txn.registration = 0
        self._txn.state = state
        self._txn.taken_over = True
        self._held = []
        self._take_parts(topics)

    def bury(self):
        """Another process wrote the id's last record, which has no value: the id is not known."""
        self._txn.state.status = TRANSACTION_DEAD
        self._txn.state.partition_count = 0
        self._txn.value_bytes = 0
        self._txn.prepare_offset = -1
        self._txn.part_count = 0
        self._txn.registration = 0
        self._held = []

    def _take_parts(self, list topics):
        """List the partitions of the value just taken, without logs."""
        cdef TransactionState state
        cdef int32_t version = 0
        cdef int32_t index, place
        cdef bytes topic
        cdef dict once = {}
        cdef NativePart* parts = decode_value(self.value(), "", &state, &version)
        self._txn.state.partition_count = 0
        try:
            if state.status != TRANSACTION_ONGOING and not is_prepare(state.status):
                return
            for index in range(state.partition_count):
                topic = once.setdefault(topics[index], topics[index])
                place = transaction_add_part(
                    &self._txn, <const uint8_t*>PyBytes_AS_STRING(topic),
                    <int32_t>PyBytes_GET_SIZE(topic), parts[index].partition, NULL)
                if place < 0:
                    raise errors.OutOfMemoryError(f"{state.partition_count} partitions")
                self._txn.parts[place].registration = 0
                if state.named:
                    self._txn.parts[place].end_offset = parts[index].end_offset
                    memcpy(self._txn.parts[place].topic_id, parts[index].topic_id, 16)
            self._txn.state.partition_count = self._txn.part_count
            self._held = list(once)
        finally:
            free(parts)

    def attach(self, parts):
        """Give the transaction's partitions their logs; parts that are not of it are left alone."""
        for part in parts:
            if find_part(&self._txn, <TransactionPart?>part) >= 0:
                self._hold(part)

    def drop_partition(self, str topic not None, Py_ssize_t partition):
        """Forget a partition of the open or decided transaction: its topic was deleted."""
        cdef bytes encoded = topic.encode()
        cdef int32_t index = -1
        if 0 <= partition <= 0x7FFFFFFF and len(encoded) <= 0x7FFF:
            index = transaction_find_part(
                &self._txn, <const uint8_t*>PyBytes_AS_STRING(encoded),
                <int32_t>PyBytes_GET_SIZE(encoded), <int32_t>partition)
        if index >= 0:
            transaction_remove_part(&self._txn, index)

    # For those who write.

    cdef int _hold(self, TransactionPart part) except -1:
        """Have the part among the native ones, and what it borrows from alive."""
        cdef int32_t index = find_part(&self._txn, part)
        cdef const uint8_t* topic = <const uint8_t*>PyBytes_AS_STRING(part._topic_bytes)
        if (index >= 0 and self._txn.parts[index].topic == topic
                and self._txn.parts[index].log == &part.log._log):
            return 0
        self._held.append(part)
        index = transaction_add_part(
            &self._txn, topic, <int32_t>PyBytes_GET_SIZE(part._topic_bytes), part.partition,
            &part.log._log)
        if index < 0:
            raise errors.OutOfMemoryError("a partition of a transaction")
        return 0

    cdef int _before_repeat(self, Status status, Fault* fault, bint appending=True) except -1:
        """Have the callbacks of the log at which a call failed do what it asks for, so that the
        call can be repeated; raise any other error.
        """
        cdef PartitionLog log = None
        if status == STATUS_FELL_BEHIND or status == STATUS_PRODUCER_NOT_CACHED:
            log = self._failed_log()
        if log is None:
            raise self._failure(status, fault, appending)
        try:
            log._before_repeat(status, fault)
        except errors.LogClosedError as error:
            if appending or self._txn.failed_part < 0:
                raise
            raise self._failure(STATUS_CLOSED, fault, False) from error
        return 0

    cdef PartitionLog _failed_log(self):
        """Return the log at which the last native call failed."""
        if self._txn.failed_part < 0:
            return self._state_log
        for held in self._held:
            if isinstance(held, TransactionPart) and (
                    &(<TransactionPart>held).log._log
                    == self._txn.parts[self._txn.failed_part].log):
                return (<TransactionPart>held).log
        return None

    cdef object _failure(self, Status status, Fault* fault, bint appending):
        """The exception of a call that failed at the native `failed_part`."""
        cdef NativePart* part
        cdef str topic
        if self._txn.failed_part < 0:
            if status == STATUS_INVALID_TXN_STATE:
                # No client can bring this about: the coordinator asked for a wrong move.
                return errors.IllegalStateError(
                    f"{self.transactional_id!r}: {fault.reason.decode()} (got {fault.actual}, "
                    f"expected {fault.expected})")
            if status == STATUS_NO_MEMORY:
                return errors.OutOfMemoryError(
                    f"{self.transactional_id!r}: {fault.reason.decode()}")
            return fault_error(
                status, fault, f"{self._state_log.topic}-{self._state_log.partition}",
                self._state_log.path)
        part = &self._txn.parts[self._txn.failed_part]
        topic = topic_of(part, self._state_log.path)
        if status in (STATUS_IO, STATUS_FAILED) and was_deleted(part):
            # A file is gone: another process is deleting the topic.
            status, fault.reason = STATUS_CLOSED, "the topic was deleted"
        if status == STATUS_CLOSED and not appending:
            return PartitionLost(topic, part.partition)
        return fault_error(status, fault, f"{topic}-{part.partition}", path_of(part))


cdef bint was_deleted(const NativePart* part) noexcept:
    """True if its topic was deleted, by any process."""
    return (part.log != NULL and part.log.page != NULL
            and control_flag(&part.log.page.deleted) != 0)


cdef str path_of(const NativePart* part):
    if part.log == NULL or part.log.directory == NULL:
        return ""
    return (<bytes>part.log.directory).decode("utf-8", "surrogateescape")
