"""The topics of a store: their partitions, ids and settings, in `state/topics.json`.

The file is replaced as a whole and synced, and so is the one place where a topic begins and ends to
exist. Creating: directories first, then the file. Deleting: the topic is marked in the file, then
its directories go, then its entry; a deletion cut short is finished at the next opening.
Every process of the store has read the file. A counter that they share rises when another one
replaced it: then it is read again before the next look. One process at a time changes it.
If the file is lost it is rebuilt from the directories and their `partition.metadata`; only the
topics' settings are then the defaults again.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eoslog.bindings.lock_block import IfFree, LockBlock
from eoslog.bindings.record_batch import crc32c
from eoslog.bindings.shared_page import COUNTER_TOPICS, LOCK_TOPICS, SharedPage
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common import clock
from eoslog.common.config import CLEANUP_POLICY, NO_LIMIT, TOPIC_SETTINGS, parse_topic_config
from eoslog.common.json_text import loads_json
from eoslog.common.topic_name import INTERNAL_TOPICS, check_topic_name
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    InvalidTopicError,
    StoreVersionError,
)
from eoslog.fs.atomic_file import read_if_there, write_atomically
from eoslog.fs.file_lock import file_locked
from eoslog.fs.identity_files import id_bytes, new_id, read_partition_metadata

FILE_NAME = "topics.json"
CHANGES_FILE_NAME = "topics.lock"
REGISTRY_VERSION = 1
PARTITIONS_MAX = 100_000
INTERNAL_TOPIC_PARTITIONS = 50
# Kafka's segment size of its own state topics. A record may be a job's whole manifest.
_INTERNAL_TOPIC_CONFIG = {"segment.bytes": 104_857_600, "max.message.bytes": 67_108_864}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it stands: `config` holds the settings it was created with, without defaults.

    `created_ms` is when it was created, in milliseconds since 1970; None for a topic of version
    0.1.0, and for one whose entry was made again from its directories.
    """

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, int | str] = field(default_factory=lambda: MappingProxyType({}))
    internal: bool = False
    deleting: bool = False
    # By partition: missing offsets below it are no damage (`legal_holes`). Found out when the
    # partition is opened; so it makes no other topic.
    holes_below: Mapping[int, int] = field(
        default_factory=lambda: MappingProxyType({}), compare=False
    )
    created_ms: int | None = field(default=None, compare=False)

    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    def __reduce__(self) -> tuple[type["TopicDescription"], tuple[object, ...]]:
        fields = (self.name, self.topic_id, self.partitions, dict(self.config), self.internal)
        return type(self), (*fields, self.deleting, dict(self.holes_below), self.created_ms)


def cleanup_policy_of(topic: TopicDescription) -> str:
    """Return Kafka's cleanup policy of a topic's old records: "delete", "compact", or both."""
    return str(topic.config.get(CLEANUP_POLICY, TOPIC_SETTINGS[CLEANUP_POLICY].default))


def is_compacted(topic: TopicDescription) -> bool:
    """True if offsets may be missing anywhere in the topic."""
    return "compact" in cleanup_policy_of(topic)


def settings_of(topic: TopicDescription, topic_defaults: Mapping[str, int]) -> dict[str, int]:
    """A topic's settings that are numbers: its own, else the store's, else the defaults."""
    defaults = {
        name: int(setting.default)
        for name, setting in TOPIC_SETTINGS.items()
        if isinstance(setting.default, int)
    }
    own = {name: int(one) for name, one in topic.config.items() if name != CLEANUP_POLICY}
    config = {**defaults, **topic_defaults, **own}
    if topic.internal:
        config = {**defaults, **_INTERNAL_TOPIC_CONFIG}
    if cleanup_policy_of(topic) == "compact":
        # The newest record of each key holds, however old it is.
        config["retention.ms"] = config["retention.bytes"] = NO_LIMIT
    # A batch has to fit into a segment.
    config["max.message.bytes"] = min(config["max.message.bytes"], config["segment.bytes"])
    return config


def nothing_to_check() -> None:
    """The files cannot become others."""


class TopicRegistry:
    """The topics by name. Every change is durable on return; a look takes no lock."""

    def __init__(
        self, state_path: Path, topics: dict[str, TopicDescription], shared: SharedPage
    ) -> None:
        self._path = state_path / FILE_NAME
        self._changes_path = state_path / CHANGES_FILE_NAME
        self._shared = shared
        # Called before each change: it raises where the files are not those that were opened.
        self.check_files: Callable[[], None] = nothing_to_check
        self._topics = topics
        self._lock = ThreadLock()  # Of the fields below.
        self._changing_topics = ThreadLock()
        # Of the file that was read; -1 where the count was not taken before it was.
        self._count = -1
        self._identity: tuple[int, int, int] | None = None
        self._generation = 0

    @classmethod
    def load(cls, store_path: Path, state_path: Path, shared: SharedPage) -> "TopicRegistry":
        """Read the file, or make it from the directories if it is missing.

        Raises CorruptRecordError if it is not what was written, StoreVersionError if a newer
        version of eoslog wrote it.
        """
        registry = cls(state_path, {}, shared)
        with registry._changing():
            topics = read_topics(state_path)
            if topics is None:
                registry._replace(topics_of_directories(store_path))
            else:
                registry._topics = topics
        return registry

    def get(self, name: str) -> TopicDescription | None:
        """The topic, unless it does not exist or is being deleted."""
        topic = self._known().get(name)
        return None if topic is None or topic.deleting else topic

    def id_of(self, where: TopicPartition) -> str | None:
        """The id of a partition's topic; None if no user's topic has such a partition."""
        topic = self.get(where.topic)
        if topic is None or topic.internal or not 0 <= where.partition < topic.partitions:
            return None
        return topic.topic_id

    def all(self) -> list[TopicDescription]:
        """Every topic, internal ones too, but none that is being deleted."""
        return [topic for topic in self._known().values() if not topic.deleting]

    def deleting(self) -> list[TopicDescription]:
        """The topics whose deletion has begun and not ended."""
        return [topic for topic in self._known().values() if topic.deleting]

    @property
    def generation(self) -> int:
        """Rises with each change that is known here, by whichever process."""
        self._known()
        return self._generation

    def changing_topics(self) -> LockBlock[None]:
        """Return a block in which no other thread, of any process, creates or deletes a user topic.

        It comes before every other lock of the store but the store's own in this process. Raises
        ConcurrentAccessError for a thread that is in it.
        """
        return LockBlock(
            self._changing_topics,
            self._changes_locked(wait=True),
            prepare=lambda *_: self.check_files(),
        )

    def changing_topics_if_free(self) -> LockBlock[bool]:
        """Return the same block without waiting; gives False where another thread is in it."""

        def prepare(*held: bool) -> bool:
            self.check_files()
            return all(held)

        return LockBlock(
            IfFree(self._changing_topics), self._changes_locked(wait=False), prepare=prepare
        )

    def _changes_locked(self, *, wait: bool) -> AbstractContextManager[bool]:
        self.check_files()  # Before the lock's file is made there.
        return file_locked(self._changes_path, wait=wait)

    def add(self, topic: TopicDescription) -> None:
        """Have the topic exist from now on; its directories are in place already."""
        with self._changing():
            self._replace({**self._topics, topic.name: topic})

    def making_partition(self, name: str, partitions: int) -> LockBlock[TopicDescription]:
        """Return a block in which no other process makes a partition of an internal topic.

        Gives the topic, which is added if it is not there; it has the directories that it has. No
        other lock may be waited for in the block.
        """

        def get_or_add(_: object) -> TopicDescription:
            topic = self._topics.get(name)
            if topic is None or topic.deleting:
                topic = new_topic(name, partitions, {})
                self._replace({**self._topics, name: topic})
            return topic

        return LockBlock(self._changing(), prepare=get_or_add)

    def mark_deleting(self, name: str) -> None:
        """Mark the topic as deleted; its directories are still there."""
        with self._changing():
            marked = replace(self._topics[name], deleting=True)
            self._replace({**self._topics, name: marked})

    def note_holes(self, name: str, partition: int, below: int) -> None:
        """Note that missing offsets below one are no damage in a partition; 0: all are."""
        with self._changing():
            topic = self._topics[name]
            noted = {
                number: one for number, one in topic.holes_below.items() if number != partition
            }
            if below:
                noted[partition] = below
            changed = replace(topic, holes_below=MappingProxyType(noted))
            self._replace({**self._topics, name: changed})

    def remove(self, name: str) -> None:
        """Forget a topic whose directories are gone."""
        with self._changing():
            self._replace({other: topic for other, topic in self._topics.items() if other != name})

    def refresh(self) -> None:
        """Read the file if it was replaced, even by a process that died, or was interrupted, before
        it could raise the counter: this one raises it then.
        """
        if self._identity != self._identity_of_file():
            if self._shared.counter(COUNTER_TOPICS) == self._count:
                self._shared.raise_counter(COUNTER_TOPICS)
            with self._lock:
                self._read_again()

    def _known(self) -> dict[str, TopicDescription]:
        if self._shared.counter(COUNTER_TOPICS) != self._count:
            with self._lock:
                self._read_again()
        return self._topics

    def _read_again(self) -> None:
        """Read the file; the caller holds the lock."""
        # The count and the identity first: what changes from here on is read by the next look.
        count, identity = self._shared.counter(COUNTER_TOPICS), self._identity_of_file()
        content = read_if_there(self._path)
        if content is not None:
            before = self._topics
            found = _parse(self._path, content)
            # A topic that is as it was stays the same object.
            self._topics = {
                name: before[name] if _is_as_it_was(before.get(name), topic) else topic
                for name, topic in found.items()
            }
            self._generation += 1
        self._count, self._identity = count, identity

    def _identity_of_file(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _changing(self) -> LockBlock[None]:
        """Return a block in which this thread alone, of all processes, changes the file."""

        def prepare(holder_died: bool, *_: object) -> None:
            self.check_files()
            if holder_died:
                self._shared.raise_counter(COUNTER_TOPICS)  # It may have replaced the file.
            if self._shared.counter(COUNTER_TOPICS) != self._count:
                self._read_again()

        return LockBlock(self._shared.held(LOCK_TOPICS), self._lock, prepare=prepare)

    def _replace(self, topics: dict[str, TopicDescription]) -> None:
        entries = {name: _entry(topic) for name, topic in sorted(topics.items())}
        document = {"version": REGISTRY_VERSION, "crc32c": _sum_of(entries), "topics": entries}
        write_atomically(self._path, json.dumps(document, indent=1).encode())
        self._topics = topics
        self._generation += 1
        self._identity = self._identity_of_file()
        self._count = self._shared.raise_counter(COUNTER_TOPICS)


def read_topics(state_path: Path) -> dict[str, TopicDescription] | None:
    """Read the topics of the file, those that are being deleted too; None if there is no file.

    Raises CorruptRecordError or StoreVersionError.
    """
    path = state_path / FILE_NAME
    content = read_if_there(path)
    return None if content is None else _parse(path, content)


def _is_as_it_was(before: TopicDescription | None, topic: TopicDescription) -> bool:
    return before is not None and before == topic and before.holes_below == topic.holes_below


def new_topic(name: str, partitions: int, config: Mapping[str, int | str]) -> TopicDescription:
    """A topic with a new id that is in no registry yet."""
    return TopicDescription(
        name,
        new_id(),
        partitions,
        MappingProxyType(dict(config)),
        name in INTERNAL_TOPICS,
        created_ms=clock.now_ms(),
    )


def _entry(topic: TopicDescription) -> dict[str, object]:
    entry: dict[str, object] = {
        "partitions": topic.partitions,
        "topic_id": topic.topic_id,
        "config": dict(topic.config),
    }
    if topic.created_ms is not None:
        entry["created_ms"] = topic.created_ms
    if topic.deleting:
        entry["deleting"] = True
    if topic.holes_below:
        entry["holes_below"] = {str(number): one for number, one in topic.holes_below.items()}
    return entry


def _sum_of(entries: object) -> int:
    """Return a checksum of the file's content, however it is laid out."""
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    return crc32c(text.encode())


def _parse(path: Path, content: bytes) -> dict[str, TopicDescription]:
    try:
        return _parse_document(path, loads_json(content))
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
    # Older versions wrote none.
    if document.get("crc32c", wanted := _sum_of(entries)) != wanted:
        raise ValueError(f"the topics do not match their checksum, which would be {wanted}")
    return {name: _parse_entry(name, entry) for name, entry in entries.items()}


def _parse_entry(name: str, entry: dict[str, object]) -> TopicDescription:
    check_topic_name(name)
    partitions, topic_id, config = entry["partitions"], entry["topic_id"], entry["config"]
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise ValueError(f"{name}: {partitions!r} partitions")
    if not isinstance(topic_id, str) or not isinstance(config, dict):
        raise TypeError(f"{name}: topic_id {topic_id!r}, config {config!r}")
    id_bytes(topic_id)
    holes_below = entry.get("holes_below", {})
    if not isinstance(holes_below, dict):
        raise TypeError(f"{name}: holes_below {holes_below!r}")
    created_ms = entry.get("created_ms")
    if created_ms is not None and not isinstance(created_ms, int):
        raise TypeError(f"{name}: created_ms {created_ms!r}")
    return TopicDescription(
        name,
        topic_id,
        partitions,
        MappingProxyType(parse_topic_config(config)),
        name in INTERNAL_TOPICS,
        entry.get("deleting") is True,
        MappingProxyType({int(number): int(below) for number, below in holes_below.items()}),
        created_ms,
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
    """Return the topics that a store's directories belong to, with default settings."""
    topics: dict[str, TopicDescription] = {}
    for (name, number), path in partition_directories(store_path):
        topic_id = read_partition_metadata(path)
        if topic_id is None or number >= PARTITIONS_MAX:
            continue
        known = topics.get(name)
        if known is None:
            # Those of an internal topic are made when they are first used: not all are there.
            count = INTERNAL_TOPIC_PARTITIONS if name in INTERNAL_TOPICS else number + 1
            topics[name] = replace(new_topic(name, count, {}), topic_id=topic_id, created_ms=None)
        else:
            topics[name] = replace(known, partitions=max(known.partitions, number + 1))
    return topics
