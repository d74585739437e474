"""Where offsets may be missing from a log without damage.

A log that eoslog writes has no holes: a missing offset is a lost record. Kafka's cleaner leaves
some. So missing offsets are legal in a topic whose `cleanup.policy` has "compact", and below the
offset that the topic registry has noted for a partition. It is noted when a log that the store does
not know (`unknown_log`) is opened for the first time: behind the last hole that it has then. What
is appended later is held to have none.

Invariant: it is noted before the opening that the log is unknown, since the opening makes it known.
One that is cut short begins again.
"""

import logging

from eoslog.bindings.log_reader import Holes
from eoslog.bindings.partition_log import PartitionLog
from eoslog.common.config import INT64_MAX
from eoslog.common.topic_partition import TopicPartition
from eoslog.session.store_paths import StorePaths
from eoslog.storage.log_settings import is_compacted
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.producer_state_store import ProducerStateStore
from eoslog.storage.topic_registry import TopicDescription, TopicRegistry
from eoslog.storage.unknown_log import is_unknown_log

_log = logging.getLogger(__name__)

# In the registry: the log is not known, and was not looked at yet.
NOT_LOOKED_AT = INT64_MAX
_SHOWN_MAX = 5


class LegalHoles:
    """The holes of one store's logs; who opens a partition asks before and after it."""

    def __init__(
        self,
        paths: StorePaths,
        registry: TopicRegistry,
        checkpoints: OffsetCheckpoints,
        rows: ProducerStateStore,
    ) -> None:
        self._paths = paths
        self._registry = registry
        self._checkpoints = checkpoints
        self._rows = rows

    def is_unknown(self, topic: TopicDescription, where: TopicPartition) -> bool:
        """Whether a log is to be verified from its beginning, since the store does not know it; it
        is noted until `look` was called. The caller keeps others from opening the partition.
        """
        noted = self._now(topic).holes_below.get(where.partition)
        if noted is not None:
            return noted == NOT_LOOKED_AT
        if not is_unknown_log(self._paths, self._checkpoints, self._rows, topic.topic_id, where):
            return False
        self._registry.note_holes(topic.name, where.partition, NOT_LOOKED_AT)
        return True

    def below(self, topic: TopicDescription, where: TopicPartition) -> int:
        """The offset below which missing ones are no damage, by what is noted now."""
        return self._now(topic).holes_below.get(where.partition, 0)

    def look(self, topic: TopicDescription, where: TopicPartition, log: PartitionLog) -> None:
        """Note what is missing from an unknown log that was just opened."""
        holes = log.holes(_SHOWN_MAX)
        self._registry.note_holes(topic.name, where.partition, holes.below)
        log.holes_below = holes.below
        if holes.hole_count:
            _log.log(
                logging.INFO if is_compacted(topic) else logging.WARNING,
                "%s: no checkpoint, control page or row in LMDB knows this log, so it was not "
                "written by this store, or they are lost. The offsets that are missing from it "
                "are taken for those of a compaction, %s; those below offset %d are not told as "
                "lost from now on",
                where,
                _shown(holes),
                holes.below,
            )

    def _now(self, topic: TopicDescription) -> TopicDescription:
        """The topic as the registry has it now; as it was, if it is just being deleted."""
        return self._registry.get(topic.name) or topic


def _shown(holes: Holes) -> str:
    """The first holes, and how many offsets they all are."""
    shown = ", ".join(f"{first} to {upper_bound - 1}" for first, upper_bound in holes.first)
    left = holes.hole_count - len(holes.first)
    more = f" and {left} more" if left else ""
    count = f"{holes.hole_count} hole{'s' if holes.hole_count > 1 else ''}"
    return f"{shown}{more} ({holes.offset_count} offsets in {count})"
