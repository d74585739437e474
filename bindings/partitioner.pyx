# cython: language_level=3
"""Partitioner: the partition that Kafka's own clients choose for a key."""

import numpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.bindings.columns cimport ColumnHolder, open_column
from eoslog.native.column cimport Column, column_get
from eoslog.native.murmur2 cimport murmur2 as hash_of
from eoslog.native.murmur2 cimport partition_for_hash

cdef enum:
    NO_PARTITION = -1                # Of a record without a key.
    PARTITION_COUNT_MAX = 0x7FFFFFFF


def murmur2(bytes key not None):
    """Return Kafka's hash of a key: a signed number of 32 bits."""
    return <int32_t>hash_of(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


def partition_for_key(bytes key not None, partitions):
    """Return the partition, 0 to partitions - 1, that Kafka's clients choose for a key.

    Raises ValueError unless 1 <= partitions < 2**31.
    """
    cdef int32_t partition_count = checked_partition_count(partitions)
    return partition_for_hash(
        hash_of(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)), partition_count)


def partition_column(keys not None, partitions):
    """Return the partition of each key of a column as a numpy array of int32; -1 for a null key.

    Takes every kind of column that an append takes. Raises TypeError for what is no column, and
    ValueError unless 1 <= partitions < 2**31.
    """
    cdef int32_t partition_count = checked_partition_count(partitions)
    cdef ColumnHolder holder = open_column(keys, "keys")
    placed = numpy.empty(holder.column.count, dtype=numpy.int32)
    cdef int32_t[::1] view = placed
    cdef int32_t* first
    if holder.column.count > 0:
        first = &view[0]
        with nogil:
            place(&holder.column, partition_count, first)
    return placed


cdef int32_t checked_partition_count(object partitions) except -1:
    cdef Py_ssize_t count = partitions
    if not 1 <= count <= PARTITION_COUNT_MAX:
        raise ValueError(f"partitions: {count}, which is not from 1 to {PARTITION_COUNT_MAX}")
    return <int32_t>count


cdef void place(const Column* keys, int32_t partition_count, int32_t* partitions) noexcept nogil:
    """Fill one partition for each key of the column."""
    cdef const uint8_t* key = NULL
    cdef int64_t key_bytes
    cdef int64_t index
    for index in range(keys.count):
        key_bytes = column_get(keys, index, &key)
        if key_bytes < 0:
            partitions[index] = NO_PARTITION
        else:
            partitions[index] = partition_for_hash(hash_of(key, key_bytes), partition_count)
