"""The words of a history: kinds of operations, how they ended, and which fields each has."""

from typing import Final

SEND, POLL, SEEK, INIT, COMMIT, ABORT, OFFSETS, COMMITTED, ENDS = range(9)
KINDS: Final = (
    "send",
    "poll",
    "seek",
    "init",
    "commit",
    "abort",
    "offsets",
    "committed",
    "ends",
)

OK, FAIL, UNKNOWN = range(3)
OUTCOMES: Final = ("ok", "fail", "unknown")

READ_COMMITTED, READ_UNCOMMITTED = range(2)
ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")

# No number of the kind: no transaction, no offset, no producer id.
NONE: Final = -1
# The end of an operation of which nobody knows when, or whether, it took effect.
NEVER_NS: Final = 1 << 62
# Offsets and partitions share one 64-bit key.
OFFSET_BITS: Final = 44
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1
PARTITIONS_MAX: Final = 1 << (63 - OFFSET_BITS)

_EVERY = frozenset({"client", "op", "kind", "begin_ns", "end_ns", "outcome", "error", "note"})
_WRITER = frozenset({"transaction", "transactional_id", "producer_id", "producer_epoch"})
FIELDS: Final = {
    "send": _EVERY | _WRITER | {"topic", "partition", "offset", "value", "values"},
    "poll": _EVERY | {"isolation", "records", "next", "transaction"},
    "seek": _EVERY | {"positions"},
    "init": _EVERY | {"transactional_id", "producer_id", "producer_epoch"},
    "commit": _EVERY | _WRITER,
    "abort": _EVERY | _WRITER,
    "offsets": _EVERY | _WRITER | {"group", "offsets"},
    "committed": _EVERY | {"group", "offsets"},
    "ends": _EVERY | {"offsets", "isolation"},
}
