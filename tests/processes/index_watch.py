"""A look at the index of the coordinator's log while others write it: is it as true as it says?

Below the offset up to which it is true, it has the newest record of each transactional id, or one
that is newer still. Whoever opens the store believes that, and reads the log only from there on.
"""

from __future__ import annotations

from typing import Any

from eoslog.storage.tables import Tables
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_log import _record_of_index
from eoslog.transactions.compacted_partition import records_from
from eoslog.transactions.state_key import is_transaction_key, transactional_id_of


class IndexWatch:
    """Of one open store. It follows the log by itself, and trusts nothing that the store keeps."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._environment = parts_of(store).files.lmdb
        self._read_up_to: dict[int, int] = {}
        # Of each partition's ids, where records stand, and whether they have a value.
        self._records: dict[int, dict[bytes, list[tuple[int, bool]]]] = {}

    def look(self) -> None:
        """Raises AssertionError where the index has less than it says."""
        true_at, rows = self._environment.read(self._of_index)
        for number, offset in true_at.items():
            self._follow(number)
            for key, records in self._records.get(number, {}).items():
                below = [one for one in records if one[0] < offset]
                if below and below[-1][1]:
                    newest = below[-1][0]
                    assert rows.get(key, -1) >= newest, (
                        f"the index is true up to {offset} of {number}, and has "
                        f"{transactional_id_of(key)!r} at {rows.get(key)}: it is at {newest}"
                    )

    @staticmethod
    def _of_index(tables: Tables) -> tuple[dict[int, int], dict[bytes, int]]:
        true_at = {
            int(key): int.from_bytes((tables.get(b"applied", key) or b"")[:8])
            for key in tables.keys(b"applied")
            if key.isdigit()
        }
        rows = {
            key: _record_of_index(key, value).offset
            for key, value in tables.items(b"state", b"", b"")
            if is_transaction_key(key)
        }
        return true_at, rows

    def _follow(self, number: int) -> None:
        partition = parts_of(self._store).files.partitions.state_partition(number)
        first, end = self._read_up_to.get(number, 0), partition.log_end_offset
        found = self._records.setdefault(number, {})
        for record in records_from(partition, first, end):
            if first <= record.offset < end and record.key and is_transaction_key(record.key):
                found.setdefault(record.key, []).append((record.offset, record.value is not None))
        self._read_up_to[number] = end
