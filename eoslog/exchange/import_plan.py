"""Plan of an import: the topics of a broker's log directories, their settings, what is left out,
and all that is refused. Nothing is written.

Topics and their ids are those of the directories. The cluster's metadata, if they are there, have
the numbers of partitions and the settings; a partition that they do not have on this node is left
out, as a broker would rename it to `-stray`. Options come before the metadata. A broker's
`server.properties` are not known: its defaults do not count, and so nothing is deleted by them.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from eoslog.common.config import (
    BROKER_NAMES,
    CLEANUP_POLICY,
    NO_LIMIT,
    TOPIC_SETTINGS,
    kept_for_kafka,
    parse_kafka_topic_config,
    parse_topic_config,
)
from eoslog.common.topic_name import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    VERSION_TOPIC,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    InvalidConfigError,
    InvalidTopicError,
    StoreError,
    UnknownTopicOrPartitionError,
)
from eoslog.exchange.broker_logs import BrokerLogs, LeftOut
from eoslog.exchange.cluster_metadata import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
    read_cluster_metadata,
)
from eoslog.exchange.internal_logs import open_transactional_ids, other_groups
from eoslog.storage.topic_registry import INTERNAL_TOPIC_PARTITIONS

# The broker's names of topics' settings, and one more, which is kept for a later export.
_BROKER_NAMES = {**BROKER_NAMES, "log.cleanup.policy": CLEANUP_POLICY}
_OF_REMOTE_STORAGE = ("remote.", "local.retention.")
_RETENTION = ("retention.ms", "retention.bytes")
_SHOWN_MAX = 10


@dataclass(frozen=True)
class TopicSetting:
    """A setting of a topic, or of something else that has settings, as its text; with the reason if
    it is not taken over.
    """

    of: str
    name: str
    value: str
    reason: str = ""


@dataclass
class PlannedTopic:
    """A topic as it is to be."""

    name: str
    topic_id: str
    partitions: int
    config: dict[str, int | str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


class ImportPlan:
    """Plan of what is imported, which raises for all that is refused."""

    def __init__(
        self,
        logs: BrokerLogs,
        config: Mapping[str, object],
        topic_config: Mapping[str, Mapping[str, object]],
        *,
        allow_missing: bool,
        link: bool,
    ) -> None:
        self.logs = logs
        self.link = link
        self.left_out = list(logs.left_out)
        self.not_applied: list[TopicSetting] = []
        self.not_taken_over: list[TopicSetting] = []
        self.retention: list[TopicSetting] = []
        if link and logs.unclean:
            raise StoreError(
                f"{logs.unclean[0]} was not closed by the broker, so its segments may have to be "
                "cut: import it without links"
            )
        self.metadata = None if logs.metadata is None else read_cluster_metadata(logs.metadata)
        self.partitions = dict(logs.partitions)
        if self.metadata is not None:
            self._leave_out_strays(self.metadata)
        self.topics = self._find_topics()
        self.missing = [
            where
            for topic in self.topics.values()
            for where in topic.topic_partitions()
            if where not in self.partitions
        ]
        if self.missing and not allow_missing:
            names = ", ".join(map(str, self.missing[:_SHOWN_MAX]))
            more = (
                f" and {len(self.missing) - _SHOWN_MAX} more"
                if len(self.missing) > _SHOWN_MAX
                else ""
            )
            raise StoreError(
                f"partitions without a directory: {names}{more}; name the broker's other log "
                "directories too, or allow missing ones, which will be empty"
            )
        unknown = sorted(set(topic_config) - (set(self.topics) - INTERNAL_TOPICS))
        if unknown:
            raise UnknownTopicOrPartitionError(f"no users' topic {unknown[0]!r} in {logs.paths[0]}")
        for topic in self.topics.values():
            if not topic.internal:
                topic.config = self._settings_of(topic.name, config, topic_config)
        self._note_other_settings()
        self.other_groups = other_groups(self._directories(CONSUMER_OFFSETS_TOPIC))
        self.open_ids = open_transactional_ids(self._directories(TRANSACTION_STATE_TOPIC))

    def _directories(self, topic: str) -> list[Path]:
        return [one.path for where, one in sorted(self.partitions.items()) if where.topic == topic]

    def _leave_out_strays(self, metadata: ClusterMetadata) -> None:
        """Leave out what a broker would rename to `-stray`: partitions of topics that the metadata
        do not have, or have with another id, and those that are on other nodes.
        """
        for where, one in list(self.partitions.items()):
            topic = metadata.topics.get(where.topic)
            if topic is not None and topic.topic_id == one.topic_id:
                nodes = topic.replicas.get(where.partition, ())
                if self.logs.node_id in nodes:
                    continue
                others = ", ".join(map(str, nodes)) or "no node"
                reason = f"by the cluster's metadata {where} is on {others}, not here"
            elif topic is None:
                reason = f"the cluster's metadata have no topic {where.topic}: it was deleted"
            else:
                reason = (
                    f"it is of topic id {one.topic_id}, and topic {where.topic} has "
                    f"{topic.topic_id}: it was deleted and created again"
                )
            del self.partitions[where]
            self.left_out.append(LeftOut(str(one.path), reason))

    def _find_topics(self) -> dict[str, PlannedTopic]:
        topics: dict[str, PlannedTopic] = {}
        for where, one in sorted(self.partitions.items()):
            known = topics.setdefault(where.topic, PlannedTopic(where.topic, one.topic_id, 0))
            if known.topic_id != one.topic_id:
                raise StoreError(
                    f"{one.path} is of topic id {one.topic_id}, and other partitions of "
                    f"{where.topic} are of {known.topic_id}"
                )
            known.partitions = max(known.partitions, where.partition + 1)
        if self.metadata is not None:
            self._add_from_metadata(self.metadata, topics)
        if VERSION_TOPIC in topics:
            raise InvalidTopicError(
                f"a store cannot have a topic {VERSION_TOPIC!r}: the name stands for the versions "
                "of staged jobs in groups"
            )
        for name in INTERNAL_TOPICS & set(topics):
            count = topics[name].partitions
            if self.metadata is None:  # The last ones may be missing.
                topics[name].partitions = count = max(count, INTERNAL_TOPIC_PARTITIONS)
            if count != INTERNAL_TOPIC_PARTITIONS:
                raise StoreError(
                    f"{name} has {count} partitions, and {INTERNAL_TOPIC_PARTITIONS} in every "
                    "store: the partition of each of its keys follows from that number"
                )
        return topics

    def _add_from_metadata(
        self, metadata: ClusterMetadata, topics: dict[str, PlannedTopic]
    ) -> None:
        for name, found in sorted(metadata.topics.items()):
            is_here = any(self.logs.node_id in nodes for nodes in found.replicas.values())
            if name in topics or is_here:
                count = max(found.replicas, default=-1) + 1
                topics[name] = PlannedTopic(name, found.topic_id, count)
            else:
                reason = f"node {self.logs.node_id} has no partition of it"
                self.left_out.append(LeftOut(f"topic {name}", reason))

    def _settings_of(
        self,
        name: str,
        config: Mapping[str, object],
        topic_config: Mapping[str, Mapping[str, object]],
    ) -> dict[str, int | str]:
        """A topic's settings, and a note of each that is not as it was."""
        given = {**config, **topic_config.get(name, {})}
        found: dict[str, int | str] = {}
        of_kafka = {one: value for one, value in self._of_kafka(name).items() if one not in given}
        for one, value in sorted(of_kafka.items()):
            if one.startswith(_OF_REMOTE_STORAGE):
                reason = "what is in remote storage does not come with the logs"
                self.not_taken_over.append(TopicSetting(f"topic {name}", one, value, reason))
                continue
            try:
                found |= parse_kafka_topic_config({one: value})
            except InvalidConfigError as error:
                reason = str(error)
                self.not_taken_over.append(TopicSetting(f"topic {name}", one, value, reason))
        found |= parse_topic_config(given, may_compact=True)
        for one, value in kept_for_kafka(found).items():
            if not _is_lawful({one: value}):
                self.not_applied.append(TopicSetting(f"topic {name}", one, value))
        policy = str(found.get(CLEANUP_POLICY, TOPIC_SETTINGS[CLEANUP_POLICY].default))
        if "compact" in policy:
            self.not_applied.append(TopicSetting(f"topic {name}", CLEANUP_POLICY, policy))
        for one in _RETENTION:
            if "delete" in policy and found.get(one, NO_LIMIT) != NO_LIMIT:
                self.retention.append(TopicSetting(f"topic {name}", one, str(found[one])))
        return found

    def _of_kafka(self, name: str) -> dict[str, str]:
        """A topic's settings in the cluster: its own, else those of the broker, else of all."""
        if self.metadata is None:
            return {}
        found: dict[str, str] = {}
        for broker in ("", str(self.logs.node_id)):
            settings = self.metadata.settings_of(BROKER_RESOURCE, broker)
            found |= {_BROKER_NAMES[one]: settings[one] for one in settings if one in _BROKER_NAMES}
        return found | dict(self.metadata.settings_of(TOPIC_RESOURCE, name))

    def _note_other_settings(self) -> None:
        """Note the settings of all that is no topic, but for those that became topics'."""
        if self.metadata is None:
            return
        for resource, settings in sorted(self.metadata.settings.items()):
            if resource.kind == TOPIC_RESOURCE:
                continue
            of_broker = resource.kind == BROKER_RESOURCE
            for name, value in sorted(settings.items()):
                # Some values describe what a store does anyway.
                if of_broker and (name in _BROKER_NAMES or _is_lawful({name: value})):
                    continue
                reason = "a store has no such setting"
                self.not_taken_over.append(TopicSetting(str(resource), name, value, reason))


def _is_lawful(config: Mapping[str, object]) -> bool:
    """True if a topic may have these settings."""
    with suppress(InvalidConfigError):
        parse_topic_config(config)
        return True
    return False
