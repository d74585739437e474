# cython: language_level=3
"""The one place where a native status becomes an exception."""

import errno
import os

from eoslog import errors

from eoslog.native.record_batch cimport ATTRIBUTE_COMPRESSION_MASK
from eoslog.native.status cimport (
    STATUS_BATCH_TOO_LARGE, STATUS_CLOSED, STATUS_COMPRESSED, STATUS_COORDINATOR_FENCED,
    STATUS_CORRUPT,
    STATUS_FAILED, STATUS_FELL_BEHIND, STATUS_FENCED, STATUS_INVALID_RECORD,
    STATUS_INVALID_TIMESTAMP, STATUS_INVALID_TXN_STATE, STATUS_IO, STATUS_LOCK_HELD,
    STATUS_NO_MEMORY, STATUS_NO_SPACE, STATUS_OFFSET_OUT_OF_RANGE, STATUS_OFFSET_OVERFLOW,
    STATUS_READ_ONLY, STATUS_RECORD_TOO_LARGE, STATUS_REOPENED, STATUS_SEGMENT_FULL,
    STATUS_SEQUENCE_GAP,
)


_CLASSES = {
    <int>STATUS_SEQUENCE_GAP: errors.OutOfOrderSequenceError,
    <int>STATUS_FENCED: errors.InvalidProducerEpochError,
    <int>STATUS_SEGMENT_FULL: errors.RecordBatchTooLargeError,
    <int>STATUS_BATCH_TOO_LARGE: errors.RecordBatchTooLargeError,
    <int>STATUS_CLOSED: errors.LogClosedError,
    <int>STATUS_NO_SPACE: errors.StoreFullError,
    <int>STATUS_OFFSET_OUT_OF_RANGE: errors.OffsetOutOfRangeError,
    <int>STATUS_RECORD_TOO_LARGE: errors.RecordTooLargeError,
    <int>STATUS_INVALID_RECORD: errors.InvalidRecordError,
    <int>STATUS_INVALID_TIMESTAMP: errors.InvalidTimestampError,
    <int>STATUS_INVALID_TXN_STATE: errors.InvalidTxnStateError,
    <int>STATUS_FAILED: errors.StoreFailedError,
    <int>STATUS_OFFSET_OVERFLOW: errors.StoreError,
    <int>STATUS_COORDINATOR_FENCED: errors.TransactionCoordinatorFencedError,
    <int>STATUS_LOCK_HELD: errors.StoreInUseError,
    <int>STATUS_FELL_BEHIND: errors.FellBehindError,
    <int>STATUS_REOPENED: errors.StoreReopenedError,
}


_COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")


cdef str compression_name(int attributes):
    """Return Kafka's name of the compression type in a batch's attributes."""
    cdef int code = attributes & ATTRIBUTE_COMPRESSION_MASK
    return _COMPRESSION_TYPES[code] if code < len(_COMPRESSION_TYPES) else f"unknown({code})"


cdef object fault_error(Status status, const Fault* fault, str context, str path):
    """Make the exception of a negative status; `path` is a file, or the log's directory."""
    cdef str reason = "unknown reason" if fault.reason == NULL else fault.reason.decode()
    cdef str message = f"{context}: {reason} (got {fault.actual}, expected {fault.expected})"
    if status in (STATUS_RECORD_TOO_LARGE, STATUS_INVALID_TIMESTAMP) and fault.position_bytes > 0:
        message = f"{message} at record {fault.position_bytes}"
    if status == STATUS_COMPRESSED:
        name = compression_name(<int>fault.actual)
        if fault.base_offset < 0:
            return errors.UnsupportedCompressionTypeError("", 0, name)
        return errors.UnsupportedCompressionTypeError(
            os.path.join(path, f"{fault.base_offset:020d}.log"), fault.position_bytes, name)
    if status == STATUS_CORRUPT:
        if path and fault.base_offset >= 0 and not path.endswith(".log"):
            path = os.path.join(path, f"{fault.base_offset:020d}.log")
        return errors.CorruptRecordError(
            path, fault.position_bytes,
            f"{reason} (got {fault.actual}, expected {fault.expected})")
    if status == STATUS_NO_MEMORY:
        return errors.OutOfMemoryError(message)
    if status == STATUS_IO or status == STATUS_READ_ONLY:
        return io_error(fault, context, path)
    if status == STATUS_FAILED:
        message = f"{context}: {reason}: {os.strerror(fault.os_errno)}; reopen the store"
    elif status == STATUS_NO_SPACE:
        message = f"{context}: {reason}: {os.strerror(fault.os_errno)}"
    elif status == STATUS_LOCK_HELD:
        message = f"{context}: {reason}: process {fault.actual}"
    elif status == STATUS_CLOSED or status == STATUS_REOPENED:
        message = f"{context}: {reason}"
    return _CLASSES.get(<int>status, errors.StoreError)(message)


cdef object io_error(const Fault* fault, str context, str path):
    cdef str reason = "input or output failed" if fault.reason == NULL else fault.reason.decode()
    cdef str message = f"{context}: {reason}: {os.strerror(fault.os_errno)} ({path})"
    if fault.os_errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return errors.StoreReadOnlyError(message)
    if fault.os_errno == errno.ENOMEM:
        return errors.OutOfMemoryError(message)
    if fault.os_errno in (errno.EMFILE, errno.ENFILE, errno.ENOENT):
        return errors.StoreError(message)
    return errors.StoreFailedError(message)


cdef int raise_status(Status status, const Fault* fault, str context, str path) except -1:
    """Raise the exception of a negative status."""
    raise fault_error(status, fault, context, path)
