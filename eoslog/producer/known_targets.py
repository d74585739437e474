"""Known targets of offsets: the same partitions of a group again need no second look.

Invariant: a target is given out only for the topics that it was found for; one that is made again
under its name has another id.
"""

from collections.abc import Mapping

from eoslog.bindings.client_transaction import OffsetsTarget
from eoslog.common.topic_partition import TopicPartition
from eoslog.groups.metadata import ConsumerGroupMetadata, as_group_metadata

_KEPT_MAX = 64


class KnownTargets:
    """Targets to which a producer's transactions appended offsets, by group and partitions."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[OffsetsTarget, Mapping[str, str]]] = {}

    def find(self, group: object, offsets: object) -> OffsetsTarget | None:
        """Return where these offsets go; None where that needs another look."""
        if type(offsets) is not dict or type(group) not in (str, ConsumerGroupMetadata):
            return None
        found = self._kept.get((group, *offsets))
        if found is None:
            return None
        target, topic_ids = found
        for topic, topic_id in as_group_metadata(group).topic_ids.items():
            if topic_ids.get(topic, topic_id) != topic_id:
                return None
        return target

    def keep(
        self,
        group: str | ConsumerGroupMetadata,
        topic_ids: Mapping[TopicPartition, str],
        target: OffsetsTarget,
    ) -> None:
        """Keep where offsets of these partitions, of topics with these ids, went."""
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        ids = {where.topic: topic_id for where, topic_id in topic_ids.items()}
        self._kept[(group, *topic_ids)] = (target, ids)
