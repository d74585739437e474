"""The topics of a store: their partitions, ids and settings, in `state/topics.json`.

The file is replaced as a whole and synced, and so is the one place where a topic begins and ends to
exist. Creating: directories first, then the file. Deleting: the topic is marked in the file, then
its directories go, then its entry; a deletion cut short is finished at the next opening.
If the file is lost it is made again from the directories and their `partition.metadata`; only the
topics' settings are then the defaults again.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eoslog.atomic_file import read_if_there, write_atomically
from eoslog.config import parse_topic_config
from eoslog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    InvalidTopicError,
    StoreVersionError,
)
from eoslog.kafka_uuid import id_bytes, new_id
from eoslog.partition_metadata import read_partition_metadata
from eoslog.topic_name import INTERNAL_TOPICS, check_topic_name
from eoslog.topic_partition import TopicPartition

FILE_NAME = "topics.json"
REGISTRY_VERSION = 1
PARTITIONS_MAX = 100_000
INTERNAL_TOPIC_PARTITIONS = 50


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it stands: `config` holds the settings it was created with, without defaults."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    internal: bool = False
    deleting: bool = False

    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    def __reduce__(self) -> tuple[type["TopicDescription"], tuple[object, ...]]:
        fields = (self.name, self.topic_id, self.partitions, dict(self.config))
        return type(self), (*fields, self.internal, self.deleting)


class TopicRegistry:
    """The topics by name. Every change is durable on return; a look takes no lock."""

    def __init__(self, state_path: Path, topics: dict[str, TopicDescription]) -> None:
        self._path = state_path / FILE_NAME
        self._topics = topics
        self._lock = threading.Lock()

    @classmethod
    def load(cls, store_path: Path, state_path: Path) -> "TopicRegistry":
        """Read the file, or make it from the directories if it is missing.

        Raises CorruptRecordError if it is not what was written, StoreVersionError if a newer
        version of eoslog wrote it.
        """
        path = state_path / FILE_NAME
        content = read_if_there(path)
        if content is None:
            registry = cls(state_path, topics_of_directories(store_path))
            registry._write(registry._topics)
            return registry
        return cls(state_path, _parse(path, content))

    def get(self, name: str) -> TopicDescription | None:
        """The topic, unless it does not exist or is being deleted."""
        topic = self._topics.get(name)
        return None if topic is None or topic.deleting else topic

    def all(self) -> list[TopicDescription]:
        """Every topic, internal ones too, but none that is being deleted."""
        return [topic for topic in self._topics.values() if not topic.deleting]

    def deleting(self) -> list[TopicDescription]:
        """The topics whose deletion has begun and not ended."""
        return [topic for topic in self._topics.values() if topic.deleting]

    def add(self, topic: TopicDescription) -> None:
        """From now on the topic exists; its directories are in place already."""
        with self._lock:
            self._replace({**self._topics, topic.name: topic})

    def mark_deleting(self, name: str) -> None:
        """From now on the topic exists no more; its directories are still there."""
        with self._lock:
            marked = replace(self._topics[name], deleting=True)
            self._replace({**self._topics, name: marked})

    def remove(self, name: str) -> None:
        """Forget a topic whose directories are gone."""
        with self._lock:
            self._replace({other: topic for other, topic in self._topics.items() if other != name})

    def _replace(self, topics: dict[str, TopicDescription]) -> None:
        self._write(topics)
        self._topics = topics

    def _write(self, topics: Mapping[str, TopicDescription]) -> None:
        document = {
            "version": REGISTRY_VERSION,
            "topics": {name: _entry(topic) for name, topic in sorted(topics.items())},
        }
        write_atomically(self._path, json.dumps(document, indent=1).encode())


def new_topic(name: str, partitions: int, config: Mapping[str, int]) -> TopicDescription:
    """A topic with a new id that is in no registry yet."""
    return TopicDescription(
        name, new_id(), partitions, MappingProxyType(dict(config)), name in INTERNAL_TOPICS
    )


def _entry(topic: TopicDescription) -> dict[str, object]:
    entry: dict[str, object] = {
        "partitions": topic.partitions,
        "topic_id": topic.topic_id,
        "config": dict(topic.config),
    }
    if topic.deleting:
        entry["deleting"] = True
    return entry


def _parse(path: Path, content: bytes) -> dict[str, TopicDescription]:
    try:
        return _parse_document(path, json.loads(content))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        InvalidTopicError,
        InvalidConfigError,
    ) as error:
        raise CorruptRecordError(str(path), 0, f"not a list of topics: {error!r}") from error


def _parse_document(path: Path, document: dict[str, Any]) -> dict[str, TopicDescription]:
    version = document["version"]
    if isinstance(version, int) and version > REGISTRY_VERSION:
        raise StoreVersionError(f"{path}: version {version}, known up to {REGISTRY_VERSION}")
    if version != REGISTRY_VERSION:
        raise ValueError(f"version {version!r}")
    entries: dict[str, dict[str, object]] = document["topics"]
    return {name: _parse_entry(name, entry) for name, entry in entries.items()}


def _parse_entry(name: str, entry: dict[str, object]) -> TopicDescription:
    check_topic_name(name)
    partitions, topic_id, config = entry["partitions"], entry["topic_id"], entry["config"]
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise ValueError(f"{name}: {partitions!r} partitions")
    if not isinstance(topic_id, str) or not isinstance(config, dict):
        raise TypeError(f"{name}: topic_id {topic_id!r}, config {config!r}")
    id_bytes(topic_id)
    return TopicDescription(
        name,
        topic_id,
        partitions,
        MappingProxyType(parse_topic_config(config)),
        name in INTERNAL_TOPICS,
        entry.get("deleting") is True,
    )


def partition_directories(store_path: Path) -> Iterable[tuple[TopicPartition, Path]]:
    """The directories at the top of a store that are named after a partition of a lawful topic."""
    for path in sorted(store_path.iterdir()):
        try:
            topic_partition = TopicPartition.parse(path.name)
            check_topic_name(topic_partition.topic)
        except (ValueError, InvalidTopicError):
            continue
        if path.is_dir() and not path.is_symlink():
            yield topic_partition, path


def topics_of_directories(store_path: Path) -> dict[str, TopicDescription]:
    """The topics that the directories of a store tell of, with default settings."""
    topics: dict[str, TopicDescription] = {}
    for (name, number), path in partition_directories(store_path):
        topic_id = read_partition_metadata(path)
        if topic_id is None or number >= PARTITIONS_MAX:
            continue
        known = topics.get(name)
        if known is None:
            # Those of an internal topic are made when they are first used: not all are there.
            count = INTERNAL_TOPIC_PARTITIONS if name in INTERNAL_TOPICS else number + 1
            topics[name] = replace(new_topic(name, count, {}), topic_id=topic_id)
        else:
            topics[name] = replace(known, partitions=max(known.partitions, number + 1))
    return topics
