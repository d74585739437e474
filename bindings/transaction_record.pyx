# cython: language_level=3
"""The records of transactional ids in __transaction_state as Python sees them."""

from eoslog import errors

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from eoslog.bindings.status cimport raise_status
from eoslog.native.status cimport STATUS_OK, Fault, Status
from eoslog.native.transaction_record cimport (
    transaction_value_bound, transaction_value_decode, transaction_value_encode,
)
from eoslog.native.transaction_state cimport (
    OWNER_BYTES, TRANSACTION_EMPTY, TRANSACTION_PREPARE_COMMIT, TRANSACTION_STORED_COUNT,
    TransactionPart, TransactionState,
    state_clear, state_has_owner, transition_possible,
)

# By the number that is stored. The last two never are.
STATE_NAMES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit",
               "CompleteAbort", "Dead", "PrepareEpochFence")
_KEY_TYPE = b"\x00\x00"
_ID_BYTES_MAX = 0x7FFF


def transaction_key(str transactional_id not None):
    """The key of the id's records. ValueError if the id is empty or longer than 32767 bytes."""
    cdef bytes encoded = transactional_id.encode()
    if not 0 < len(encoded) <= _ID_BYTES_MAX:
        raise ValueError(
            f"transactional id must have 1 to {_ID_BYTES_MAX} bytes, got {len(encoded)}")
    return _KEY_TYPE + len(encoded).to_bytes(2, "big") + encoded


def transactional_id_of(bytes key not None):
    """The transactional id of a record's key, or None if the key is of another type.

    Raises CorruptRecordError if it is of this type, and broken.
    """
    if len(key) >= 2 and key[:2] != _KEY_TYPE:
        return None
    if len(key) < 4 or int.from_bytes(key[2:4], "big") != len(key) - 4:
        raise errors.CorruptRecordError("", 0, f"the key of a transaction has {len(key)} bytes")
    try:
        return key[4:].decode()
    except UnicodeDecodeError as error:
        raise errors.CorruptRecordError("", 4, "a transactional id is not UTF-8") from error


cdef TransactionPart* decode_value(
    const uint8_t[::1] value, str path, TransactionState* state, int32_t* version
) except NULL:
    """Read a value; the caller frees the parts, whose topics are borrowed from it.

    Raises CorruptRecordError.
    """
    cdef Fault fault
    cdef Status status
    cdef const uint8_t* at = NULL
    cdef Py_ssize_t value_bytes = value.shape[0]
    # A partition takes four bytes: there cannot be more of them.
    cdef Py_ssize_t part_count_max = value_bytes // 4 + 1
    cdef TransactionPart* parts
    if value_bytes > 0x7FFFFFFF:
        raise errors.CorruptRecordError(path, 0, f"a transaction's record of {value_bytes} bytes")
    parts = <TransactionPart*>malloc(<size_t>part_count_max * sizeof(TransactionPart))
    if parts == NULL:
        raise errors.OutOfMemoryError(f"{part_count_max} partitions")
    memset(&fault, 0, sizeof(Fault))
    fault.base_offset = -1
    if value_bytes:
        at = &value[0]
    with nogil:
        status = transaction_value_decode(
            at, value_bytes, state, version, parts, <int32_t>part_count_max, &fault)
    if status != STATUS_OK:
        free(parts)
        raise_status(status, &fault, "a transaction's record", path)
    return parts


cdef str topic_of(const TransactionPart* part, str path):
    cdef bytes encoded = PyBytes_FromStringAndSize(<const char*>part.topic, part.topic_bytes)
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise errors.CorruptRecordError(
            path, 0, f"a topic's name in a transaction's record is not UTF-8: {encoded!r}"
        ) from error


cdef bytes owner_of(const TransactionState* state):
    """Return the slot of the process whose producer has the id; None if there is none."""
    if not state_has_owner(state):
        return None
    return PyBytes_FromStringAndSize(<const char*>state.owner, OWNER_BYTES)


cdef int set_owner(TransactionState* state, bytes owner) except -1:
    if owner is None:
        memset(state.owner, 0, OWNER_BYTES)
        return 0
    if len(owner) != OWNER_BYTES:
        raise ValueError(f"owner must have {OWNER_BYTES} bytes, got {len(owner)}")
    memcpy(state.owner, PyBytes_AS_STRING(owner), OWNER_BYTES)
    return 0


def decode_transaction_value(const uint8_t[::1] value not None):
    """All fields of a record's value, by name; `partitions` is None when Empty.

    `ends` has (topic id, offset) for each partition, in their order, where a PrepareCommit names
    where the logs have to end (0: anywhere); else it is None.

    Raises CorruptRecordError.
    """
    cdef TransactionState state
    cdef int32_t version = 0
    cdef int32_t index
    cdef list partitions = []
    cdef list ends = []
    cdef TransactionPart* parts = decode_value(value, "", &state, &version)
    try:
        for index in range(state.partition_count):
            partitions.append((topic_of(&parts[index], ""), parts[index].partition))
            if state.named:
                ends.append(((<const char*>parts[index].topic_id)[:16], parts[index].end_offset))
    finally:
        free(parts)
    return {
        "version": version,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "timeout_ms": state.timeout_ms,
        "state": STATE_NAMES[state.status],
        "partitions": None if state.status == TRANSACTION_EMPTY else partitions,
        "last_update_ms": state.last_update_ms,
        "start_ms": state.start_ms,
        "previous_producer_id": state.previous_producer_id,
        "next_producer_id": state.next_producer_id,
        "next_producer_epoch": state.next_producer_epoch,
        "client_transaction_version": state.client_version,
        "last_producer_epoch": state.last_producer_epoch,
        "prepared": bool(state.prepared),
        "owner": owner_of(&state),
        "ends": ends if state.named else None,
    }


cdef int64_t whole(Py_ssize_t value, int bits, str name) except? -1:
    """A number that fits in so many bits; what is no whole number has raised TypeError before."""
    cdef int64_t upper_bound = <int64_t>1 << (bits - 1)
    if not -upper_bound <= value < upper_bound:
        raise ValueError(f"{name} {value} is beyond {bits} bits")
    return value


def encode_transaction_value(
    *, Py_ssize_t version=1, Py_ssize_t producer_id, Py_ssize_t producer_epoch,
    Py_ssize_t timeout_ms, str state not None, partitions, Py_ssize_t last_update_ms,
    Py_ssize_t start_ms, Py_ssize_t previous_producer_id=-1, Py_ssize_t next_producer_id=-1,
    Py_ssize_t next_producer_epoch=-1, Py_ssize_t client_transaction_version=0,
    Py_ssize_t last_producer_epoch=-1, bint prepared=False, bytes owner=None, ends=None,
):
    """A record's value with these fields; partitions of one topic stand together.

    Raises ValueError for what a record cannot hold: a state that is never stored, partitions when
    Empty, or in version 0 one of the fields from previous_producer_id on.
    """
    cdef TransactionState native
    state_clear(&native)
    native.status = state_number(state)
    native.producer_id = producer_id
    native.producer_epoch = <int16_t>whole(producer_epoch, 16, "producer epoch")
    native.timeout_ms = <int32_t>whole(timeout_ms, 32, "timeout")
    native.last_update_ms = last_update_ms
    native.start_ms = start_ms
    native.previous_producer_id = previous_producer_id
    native.next_producer_id = next_producer_id
    native.next_producer_epoch = <int16_t>whole(next_producer_epoch, 16, "next producer epoch")
    native.client_version = <int16_t>whole(client_transaction_version, 16, "transaction version")
    native.last_producer_epoch = <int16_t>whole(last_producer_epoch, 16, "last producer epoch")
    native.prepared = prepared
    set_owner(&native, owner)
    if version not in (0, 1):
        raise ValueError(f"version must be 0 or 1, got {version}")
    if version == 0 and (
            previous_producer_id != -1 or next_producer_id != -1 or next_producer_epoch != -1
            or client_transaction_version or last_producer_epoch != -1 or prepared
            or owner is not None or ends is not None):
        raise ValueError("version 0 has no tagged fields")
    if native.status >= TRANSACTION_STORED_COUNT:
        raise ValueError(f"state {state!r} is never stored")
    if (partitions is None) != (native.status == TRANSACTION_EMPTY):
        raise ValueError(f"partitions must be None when Empty, else a list, got {partitions!r}")
    native.named = ends is not None
    if ends is not None and (
            native.status != TRANSACTION_PREPARE_COMMIT or len(ends) != len(partitions)
            or any(len(topic_id) != 16 for topic_id, _ in ends)):
        raise ValueError(f"ends must have topic id and offset of each partition, got {ends!r}")
    return encode_native(&native, list(partitions or ()), list(ends or ()), <int>version)


cdef bytes encode_native(TransactionState* state, list partitions, list ends, int version):
    cdef list topics = [(<str?>topic).encode() for topic, _ in partitions]
    cdef TransactionPart* parts
    cdef uint8_t* value = NULL
    cdef int64_t value_bytes
    cdef Py_ssize_t index, number
    if any(not 0 < len(topic) <= _ID_BYTES_MAX for topic in topics):
        raise ValueError("a topic's name must have 1 to 32767 bytes")
    state.partition_count = <int32_t>len(topics)
    parts = <TransactionPart*>malloc(<size_t>(len(topics) + 1) * sizeof(TransactionPart))
    if parts == NULL:
        raise errors.OutOfMemoryError(f"{len(topics)} partitions")
    try:
        for index in range(len(topics)):
            parts[index].topic = <const uint8_t*>PyBytes_AS_STRING(topics[index])
            parts[index].topic_bytes = <int32_t>PyBytes_GET_SIZE(topics[index])
            number = partitions[index][1]
            if not 0 <= number <= 0x7FFFFFFF:
                raise ValueError(f"partition {number} is outside [0, 2**31)")
            parts[index].partition = <int32_t>number
            if state.named:
                memcpy(parts[index].topic_id, PyBytes_AS_STRING(ends[index][0]), 16)
                parts[index].end_offset = ends[index][1]
        value_bytes = transaction_value_bound(parts, state.partition_count)
        value = <uint8_t*>malloc(<size_t>value_bytes)
        if value == NULL:
            raise errors.OutOfMemoryError(f"a record of {value_bytes} bytes")
        with nogil:
            value_bytes = transaction_value_encode(value, state, parts, version)
        return PyBytes_FromStringAndSize(<const char*>value, value_bytes)
    finally:
        free(value)
        free(parts)


def state_name(Py_ssize_t number):
    """The name of a state by its number. ValueError if there is none."""
    if not 0 <= number < len(STATE_NAMES):
        raise ValueError(f"state {number} is outside [0, {len(STATE_NAMES) - 1}]")
    return STATE_NAMES[number]


def state_number(str name not None):
    """The number of a state by its name. ValueError if there is none."""
    if name not in STATE_NAMES:
        raise ValueError(f"state must be one of {', '.join(STATE_NAMES)}, got {name!r}")
    return STATE_NAMES.index(name)


def transition_allowed(str target not None, str source not None):
    """True if a transactional id may go from the state `source` to `target`."""
    return bool(transition_possible(state_number(target), state_number(source)))
