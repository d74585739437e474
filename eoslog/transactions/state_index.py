"""The index of the internal log `__transaction_state`, in LMDB.

- state: the newest record of each key of the log;
- applied: per partition of it the offset up to which that is true, and up to which it may know
  records (some may be newer); per partition of an internal topic, how large what held was when it
  was compacted last;
- undecided: the keys, among those, of transactions, and of staged jobs, that are not complete.
"""

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from eoslog.common.topic_partition import TopicPartition
from eoslog.storage.lmdb_environment import LmdbEnvironment
from eoslog.storage.tables import APPLIED, STATE, UNDECIDED, Tables

# How exactly it is known how much of an internal topic's partition holds.
LIVE_STEP_BYTES = 1 << 20
_LIVE_BYTES = struct.Struct(">q")
_OFFSETS = struct.Struct(">qq")


class StateIndex:
    """The index of one store. The methods raise StateStoreDamagedError if it was lost."""

    def __init__(self, environment: LmdbEnvironment) -> None:
        self.environment = environment

    def clear(self) -> None:
        """Forget the whole index; durable. If there is none, nothing is written."""
        names = (STATE, APPLIED, UNDECIDED)

        def write(tables: Tables) -> None:
            for name in names:
                tables.clear(name)

        if self.environment.read(lambda tables: any(map(tables.count, names))):
            self.environment.write(write)

    def read_state(self, key: bytes) -> bytes | None:
        """The newest value of a key of the internal log, as far as the index is true."""
        return self.environment.read(lambda tables: tables.get(STATE, key))

    def states_after(self, prefix: bytes, key: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return up to `count` keys that begin with `prefix`, from `key` on, and their newest
        values.
        """
        return self.environment.read(lambda tables: tables.items(STATE, prefix, key, count))

    def count_states(self) -> int:
        """Return how many keys of the internal log the index has."""
        return self.environment.read(lambda tables: tables.count(STATE))

    def read_unresolved(self, prefix: bytes) -> list[bytes]:
        """The keys of what is not complete, of a prefix, as far as the index is true."""
        return self.environment.read(lambda tables: tables.keys(UNDECIDED, prefix))

    def read_applied(self, partition: int) -> int | None:
        """Return up to which offset of a partition of the internal log the index is true."""
        return self._offset(partition, 0)

    def read_reached(self, partition: int) -> int | None:
        """Return the offset below which the records of the index are; some may be newer than the
        offset at which it is true.
        """
        return self._offset(partition, 1)

    def _offset(self, partition: int, which: int) -> int | None:
        def read(tables: Tables) -> int | None:
            value = tables.get(APPLIED, b"%d" % partition)
            return None if value is None else int(_OFFSETS.unpack(value)[which])

        return self.environment.read(read)

    def write_states(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        applied: Iterable[tuple[int, int]],
        reached: Mapping[int, int] = MappingProxyType({}),
        unresolved: Mapping[bytes, bool] = MappingProxyType({}),
    ) -> None:
        """Put newest values in, with the offsets of the internal log they are true at; durable.

        None takes a key out. `reached` has the partitions of which newer records are among the
        changes; `unresolved` has for the key of a transaction or an application if it is.
        """
        changes = list(changes)
        offsets = [
            (b"%d" % number, _OFFSETS.pack(offset, max(offset, reached.get(number, offset))))
            for number, offset in applied
        ]

        def write(tables: Tables) -> None:
            tables.change(STATE, changes)
            for key, is_unresolved in unresolved.items():
                tables.mark(UNDECIDED, key, is_there=is_unresolved)
            tables.change(APPLIED, offsets)

        self.environment.write(write)


# Compaction of the internal topics.


def read_live_bytes(environment: LmdbEnvironment, where: TopicPartition) -> int:
    """Return how many bytes of a partition held when it was compacted last, in whole steps of
    LIVE_STEP_BYTES; 0 if that is not known.
    """

    def read(tables: Tables) -> int:
        value = tables.get(APPLIED, _live_key(where))
        return 0 if value is None else int(_LIVE_BYTES.unpack(value)[0])

    return environment.read(read)


def write_live_bytes(environment: LmdbEnvironment, where: TopicPartition, live_bytes: int) -> None:
    """Note how many bytes held; what is less than a step costs no write."""
    steps = live_bytes // LIVE_STEP_BYTES * LIVE_STEP_BYTES
    if steps != read_live_bytes(environment, where):
        value = _LIVE_BYTES.pack(steps)
        environment.write(lambda tables: tables.put(APPLIED, _live_key(where), value))


def _live_key(where: TopicPartition) -> bytes:
    return f"live {where.topic} {where.partition}".encode()
