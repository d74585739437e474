"""Keys of `__transaction_state`, and the partition of each.

A key is a type (16 bits, big-endian) and a name (UTF-8). Type 0 is Kafka's own, that of
transactional ids, whose keys hold the length of the id before it; those of eoslog start at 1000.
"""

import functools
import struct

from eoslog.storage.topic_registry import INTERNAL_TOPIC_PARTITIONS

STATE_PARTITIONS = INTERNAL_TOPIC_PARTITIONS
TRANSACTION = 0
PRODUCER_ID_BLOCK = 1000
NAMED_PRODUCER = 1001
APPLICATION = 1002
DURABILITY = 1003
RECENT_JOBS = 1004
NAME_BYTES_MAX = 480  # LMDB's keys hold 511.
TYPE_BYTES = 2

_TYPE = struct.Struct(">h")
_TRANSACTION_KEY = struct.Struct(">hh")  # The type, and how many bytes of the id follow.


def type_prefix(record_type: int) -> bytes:
    """Return the bytes that all keys of a type begin with."""
    return _TYPE.pack(record_type)


def type_of(key: bytes) -> int:
    """The type of a key, which has at least TYPE_BYTES."""
    found: int = _TYPE.unpack_from(key)[0]
    return found


def state_key(record_type: int, name: str) -> bytes:
    """The key of a record; ValueError if the name is too long for it."""
    encoded = name.encode()
    if len(encoded) > NAME_BYTES_MAX:
        raise ValueError(f"a name of {len(encoded)} bytes; at most {NAME_BYTES_MAX} are allowed")
    return _TYPE.pack(record_type) + encoded


def name_of(key: bytes) -> str:
    """The name in a key of one of our own types; of another program's key, what can be read."""
    return key[TYPE_BYTES:].decode(errors="replace")


@functools.lru_cache(maxsize=1024)  # A call of a client asks for its name several times.
def state_partition_of(name: str) -> int:
    """The partition of a name: Java's hash of the text, without its sign, over the partitions."""
    hashed = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed & 0x80000000 else hashed
    # Kafka's abs of the smallest number, which has no positive counterpart, is 0.
    return 0 if signed == -(1 << 31) else abs(signed) % STATE_PARTITIONS


def transaction_key(transactional_id: str) -> bytes:
    """The key of a transactional id's record. Raises ValueError if it is too long for the index."""
    encoded = transactional_id.encode()
    if len(encoded) > NAME_BYTES_MAX:
        raise ValueError(
            f"a transactional id of {len(encoded)} bytes; at most {NAME_BYTES_MAX} are allowed"
        )
    return _TRANSACTION_KEY.pack(TRANSACTION, len(encoded)) + encoded


def is_known_key(key: bytes) -> bool:
    """True if it is the key of a transactional id, or of our own types, known or not. Records with
    other keys are passed over.
    """
    if is_transaction_key(key):
        return True
    return len(key) >= TYPE_BYTES and type_of(key) >= PRODUCER_ID_BLOCK


def is_transaction_key(key: bytes) -> bool:
    """True if it is the key of a transactional id."""
    if len(key) < _TRANSACTION_KEY.size:
        return False
    record_type, id_bytes = _TRANSACTION_KEY.unpack_from(key)
    if record_type != TRANSACTION or id_bytes != len(key) - _TRANSACTION_KEY.size:
        return False
    try:
        transactional_id_of(key)
    except UnicodeDecodeError:
        return False
    return True


def transactional_id_of(key: bytes) -> str:
    """The transactional id in its key."""
    return key[_TRANSACTION_KEY.size :].decode()
