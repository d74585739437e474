"""Legal holes: offsets that may be missing from a log without damage.

A log that eoslog writes has no holes: a missing offset is a lost record. Kafka's cleaner leaves
some. So missing offsets are legal below the offset that the topic registry has noted for a
partition. It is noted when an unknown log is opened for the first time: after the last hole that it
has then. What is appended later must have none.

Invariant: it is noted before the opening that the log is unknown, since the opening makes it known.
One that is cut short begins again.

A log that eoslog writes is known from its first opening on: by its control page, from the first
persisted producers on by LMDB, from the first checkpoint on by that. A power cut can leave a hole
only between two segments, so until the first checkpoint the page's name is synced before a second
one comes (not with durability "process"). An unknown log was moved here
from elsewhere, as a Kafka broker's, or all that was derived from it is lost.
"""

import logging
from collections.abc import Callable

from eoslog.bindings.log_reader import Holes
from eoslog.bindings.partition_log import PartitionLog
from eoslog.common.config import INT64_MAX
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.paths import StorePaths
from eoslog.storage.lmdb_environment import LmdbEnvironment, StateStoreDamagedError
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.producer_rows import ProducerRows
from eoslog.storage.topic_registry import TopicDescription, TopicRegistry, is_compacted

_log = logging.getLogger(__name__)

# In the registry: the log is not known, and was not looked at yet.
NOT_LOOKED_AT = INT64_MAX
_SHOWN_MAX = 5


def has_control_page(paths: StorePaths, where: TopicPartition) -> bool:
    """True if the partition was ever opened; the page goes with the topic alone."""
    page = paths.control(where)
    with named_os_errors(f"looking at {page}"):
        return page.exists()


class LegalHoles:
    """The holes of one store's logs; who opens a partition asks before and after it."""

    def __init__(
        self,
        paths: StorePaths,
        registry: TopicRegistry,
        checkpoints: OffsetCheckpoints,
        lmdb: LmdbEnvironment,
        state_applied: Callable[[int], int | None],
    ) -> None:
        """`state_applied` returns what LMDB knows of a partition of `__transaction_state`, or None.
        It may raise StateStoreDamagedError.
        """
        self._paths = paths
        self._registry = registry
        self._checkpoints = checkpoints
        self._lmdb = lmdb
        self._state_applied = state_applied

    def is_unknown(self, topic: TopicDescription, where: TopicPartition) -> bool:
        """True if a log must be verified from its beginning, since the store does not know it; it
        is noted until `look` was called. The caller keeps others from opening the partition.
        """
        noted = self._now(topic).holes_below.get(where.partition)
        if noted is not None:
            return noted == NOT_LOOKED_AT
        # Asked before the opening, which makes the control page.
        if (
            self._checkpoints.knows(where)
            or has_control_page(self._paths, where)
            or not self._has_batches(where)
            or self._has_rows(topic.topic_id, where)
        ):
            return False
        self._registry.note_holes(topic.name, where.partition, NOT_LOOKED_AT)
        return True

    def _has_batches(self, where: TopicPartition) -> bool:
        path = self._paths.partition(where)
        with named_os_errors(f"looking at {path}"):
            return any(one.stat().st_size for one in path.glob("*.log"))

    def _has_rows(self, topic_id: str, where: TopicPartition) -> bool:
        try:
            if where.topic == TRANSACTION_STATE_TOPIC:
                return self._state_applied(where.partition) is not None
            return ProducerRows(self._lmdb, topic_id, where.partition).read_head() is not None
        except StateStoreDamagedError:
            return False  # It was re-created, empty.

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
                "are taken for those of a compaction, %s; those below offset %d are not reported "
                "as lost from now on",
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
