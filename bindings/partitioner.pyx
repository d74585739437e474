# cython: language_level=3
"""Partitioner: the partition that Kafka's own clients choose for a key."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t

from eoslog.native.murmur2 cimport murmur2 as hash_of
from eoslog.native.murmur2 cimport partition_for_hash

cdef enum:
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


cdef int32_t checked_partition_count(object partitions) except -1:
    cdef Py_ssize_t count = partitions
    if not 1 <= count <= PARTITION_COUNT_MAX:
        raise ValueError(f"partitions must be from 1 to {PARTITION_COUNT_MAX}, got {count}")
    return <int32_t>count
