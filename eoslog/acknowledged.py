"""Up to where each log is known to have been acknowledged, found in files that nobody has open.

A record counts as acknowledged where something that was durable says that it was there: the
recovery point, a group's offset behind it, or the decision of a transaction that wrote it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from eoslog.bindings.record_batch import decode_records
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.errors import CorruptRecordError
from eoslog.group_offsets_state import GroupOffsetsState
from eoslog.log_at_rest import LogAtRest
from eoslog.state_key import is_transaction_key, transactional_id_of
from eoslog.store_paths import StorePaths
from eoslog.topic_name import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.topic_partition import TopicPartition
from eoslog.topic_registry import partition_directories

_COMMITTED = frozenset(("PrepareCommit", "CompleteCommit"))


@dataclass
class Acknowledged:
    """What is known of all partitions. `offsets`: the end of what is, and who says so."""

    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    # Of each partition, the transactions that were decided to commit: (producer id, epoch of the
    # markers), with the transactional id.
    committed: dict[TopicPartition, dict[tuple[int, int], str]] = field(default_factory=dict)

    def note(self, where: TopicPartition, offset: int, who: str) -> None:
        """Somebody says that everything below an offset was there."""
        if offset > self.offsets.get(where, (0, ""))[0]:
            self.offsets[where] = offset, who

    def objection(self, where: TopicPartition, log: LogAtRest, offset: int) -> str | None:
        """Why a partition's log must not be cut at an offset; None if nothing is against it."""
        known, who = self.offsets.get(where, (0, ""))
        if known > offset:
            return f"{who} says that the log went up to offset {known}"
        for (producer_id, epoch), name in self._without_marker(where, log).items():
            return (
                f"the transaction of {name!r} (producer {producer_id}, epoch {epoch}) was decided "
                "to commit, and nothing before the break is of it"
            )
        return None

    def _without_marker(
        self, where: TopicPartition, log: LogAtRest
    ) -> Mapping[tuple[int, int], str]:
        """The committed transactions of which the whole batches of a log hold nothing."""
        left = dict(self.committed.get(where, {}))
        newest: dict[int, int] = {}
        for header, _ in log.batches() if left else ():
            if header.is_transactional:
                newest[header.producer_id] = header.producer_epoch
                left.pop((header.producer_id, header.producer_epoch), None)
        # The batches are of the epoch before, and its marker may be what is broken. Where the log
        # begins further up, a producer that is not in it may have been deleted with its batches.
        unknown = -1 if not left or log.first_offset == 0 else 1 << 15
        return {
            (producer_id, epoch): name
            for (producer_id, epoch), name in left.items()
            if newest.get(producer_id, unknown) < epoch - 1
        }


def find_acknowledged(
    paths: StorePaths, recovery_points: Mapping[TopicPartition, int]
) -> Acknowledged:
    """What the files of a closed store say."""
    found = Acknowledged()
    for where, offset in recovery_points.items():
        found.note(where, offset, "the recovery point")
    for where, path in partition_directories(paths.root):
        if where.topic == CONSUMER_OFFSETS_TOPIC:
            _note_groups(found, LogAtRest(path))
        elif where.topic == TRANSACTION_STATE_TOPIC:
            _note_decisions(found, LogAtRest(path))
    return found


def _note_groups(found: Acknowledged, log: LogAtRest) -> None:
    state = GroupOffsetsState()
    for header, batch in log.batches():
        try:
            state.replay(header, decode_records(batch))
        except CorruptRecordError:
            break  # What it says is for the check of that log.
    for group in state.groups():
        for where, written in state.committed(group).items():
            found.note(where, written.value.offset, f"the committed offset of group {group!r}")


def _note_decisions(found: Acknowledged, log: LogAtRest) -> None:
    for _, batch in log.batches():
        for record in decode_records(batch):
            if record.key is None or record.value is None or not is_transaction_key(record.key):
                continue
            try:
                state = decode_transaction_value(record.value)
            except CorruptRecordError:
                continue
            if state["state"] in _COMMITTED:
                key = state["producer_id"], state["producer_epoch"]
                for topic, number in state["partitions"] or ():
                    of_partition = found.committed.setdefault(TopicPartition(topic, number), {})
                    of_partition[key] = transactional_id_of(record.key)
