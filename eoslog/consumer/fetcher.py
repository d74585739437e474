"""Fetches of a consumer: from which of its partitions it reads next, in turn.

Invariants: it moves no position, but returns the positions after what it read; a partition that
gave something goes after the others.
"""

from collections import OrderedDict

from eoslog.bindings.partition_log import Columns
from eoslog.bindings.record_batch import Record
from eoslog.common.durability import IsolationLevel
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.positions import ConsumerPositions, Positions
from eoslog.errors import OffsetOutOfRangeError


class Fetcher:
    """Reads the partitions of one consumer in turn; its thread guards it.

    `fetch_bytes_max` of records are read in a round of turns, `partition_bytes_max` in one turn.
    """

    def __init__(
        self,
        positions: ConsumerPositions,
        isolation_level: IsolationLevel,
        fetch_bytes_max: int,
        partition_bytes_max: int,
    ) -> None:
        self._positions = positions
        self._isolation_level = isolation_level
        self._committed_only = isolation_level == "read_committed"
        self._fetch_bytes_max = fetch_bytes_max
        self._partition_bytes_max = partition_bytes_max
        # In the order in which they are looked at next.
        self._turns: OrderedDict[TopicPartition, None] = OrderedDict()
        self._turns_of: object = None  # The assignment that they are of.

    def records(self, records_max: int) -> tuple[list[Record], Positions]:
        """Return records of all partitions in turn, until there are enough or no others, and the
        positions after them.

        Raises what the first of them raises; a later one's error waits for the next call.
        """
        self._positions.begin_all()
        reached = self._positions.current.copy()
        records: list[Record] = []
        bytes_left = self._fetch_bytes_max
        looked_at = self._in_turn()
        while looked_at:
            # Those that had more records than were taken have another turn.
            left = []
            for where in looked_at:
                if len(records) >= records_max or bytes_left <= 0:
                    return records, reached
                fetch_bytes = min(bytes_left, self._partition_bytes_max)
                try:
                    found, has_more = self._records_of(
                        where, reached, records_max - len(records), fetch_bytes
                    )
                except Exception:
                    if records:
                        return records, reached  # These first; the next poll raises.
                    raise
                if found:
                    records += found
                    self._to_the_back(where)
                if has_more:
                    bytes_left -= sum(len(one.value or b"") + len(one.key or b"") for one in found)
                    left.append(where)
            looked_at = left
        return records, reached

    def columns(self, bytes_max: int) -> tuple[tuple[TopicPartition, Columns] | None, Positions]:
        """Return about so many bytes of the first partition that has any, one batch at least, and
        the positions after them.
        """
        self._positions.begin_all()
        reached = self._positions.current.copy()
        for where in self._in_turn():
            partition = self._positions.partitions[where]
            while (position := reached[where]) is not None:
                position = reached[where] = self._positions.within_log(where, position)
                if position >= self._positions.end_of(partition):
                    break
                try:
                    columns = partition.fetch_columns(
                        position, bytes_max, isolation_level=self._isolation_level
                    )
                except OffsetOutOfRangeError:
                    reached[where] = self._positions.out_of_range(where, position)
                    continue
                if columns is None or columns.next_offset == position:
                    break
                reached[where] = columns.next_offset
                if columns.record_count:
                    self._to_the_back(where)
                    return (where, columns), reached
        return None, reached

    def _records_of(
        self,
        where: TopicPartition,
        reached: Positions,
        records_max: int,
        bytes_max: int,
    ) -> tuple[list[Record], bool]:
        """The next records of a partition, and whether there are more."""
        partition = self._positions.partitions[where]
        while (position := reached[where]) is not None:
            try:
                records, following, end = partition.fetch_next(
                    position, records_max, bytes_max, self._committed_only
                )
            except OffsetOutOfRangeError:
                reached[where] = self._positions.out_of_range(where, position)
                continue
            if position > end:  # Beyond what is decided, or past the log's end.
                following = self._positions.within_log(where, position)
            if following == position:
                return records, False
            reached[where] = following
            if records:
                return records, following < end
        return [], False

    def _in_turn(self) -> list[TopicPartition]:
        """Return the assigned partitions that are not paused, in the order in which they are to be
        looked at.
        """
        assigned = self._positions.partitions
        if self._turns_of is not assigned:
            self._turns = OrderedDict.fromkeys(assigned)
            self._turns_of = assigned
        paused = self._positions.paused
        return (
            [where for where in self._turns if where not in paused] if paused else list(self._turns)
        )

    def _to_the_back(self, where: TopicPartition) -> None:
        self._turns.move_to_end(where)
