"""The topics of a store: their partitions, ids and settings, from the file of `topics_file`.

This file is the one place where a topic begins and ends to exist. Creating: directories first,
then the entry. Deleting: the topic is marked in its entry, then its directories go, then the entry;
a deletion cut short is finished at the next opening.
Every process of the store has read the file. A counter that they share rises when another one
changed it: then it is read before the next look. One process at a time changes it, and it is read
under the same lock: no other process sees a change before it is synced. A look takes no lock where
nothing is new. The lock's holder waits for no other lock of the shared page.
If it is lost it is rebuilt from the directories and their `partition.metadata`; only the topics'
settings are then the defaults again.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from eoslog.bindings.lock_block import IfFree, LockBlock
from eoslog.bindings.shared_page import COUNTER_TOPICS, LOCK_TOPICS, SharedPage
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common import clock
from eoslog.common.arguments import whole_number
from eoslog.common.config import (
    CLEANUP_POLICY,
    NO_LIMIT,
    TOPIC_SETTINGS,
    parse_kafka_topic_config,
)
from eoslog.common.topic_name import INTERNAL_TOPICS, check_topic_name, folded_name
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    InvalidTopicError,
    StoreReadOnlyError,
    UnknownTopicOrPartitionError,
)
from eoslog.fs.file_lock import file_locked
from eoslog.fs.identity_files import id_bytes, new_id, read_partition_metadata
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.topics_file import FILE_NAME, Entry, TopicsFile, line_of, read_entries

CHANGES_FILE_NAME = "topics.lock"
PARTITIONS_MAX = 100_000
INTERNAL_TOPIC_PARTITIONS = 50
# Kafka's segment size of its own state topics. A record may be a job's whole manifest.
INTERNAL_TOPIC_CONFIG = {"segment.bytes": 104_857_600, "max.message.bytes": 67_108_864}
# Defaults of the settings that are numbers.
_NUMBERS = {
    name: int(setting.default)
    for name, setting in TOPIC_SETTINGS.items()
    if isinstance(setting.default, int)
}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it stands: `config` holds the settings given to it, without defaults.

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
        """Return the topic's partitions, by number."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    def __reduce__(self) -> tuple[type["TopicDescription"], tuple[object, ...]]:
        fields = (self.name, self.topic_id, self.partitions, dict(self.config), self.internal)
        return type(self), (*fields, self.deleting, dict(self.holes_below), self.created_ms)


def cleanup_policy_of(topic: TopicDescription) -> str:
    """Return Kafka's cleanup policy of a topic's old records: "delete", "compact", or both."""
    return str(topic.config.get(CLEANUP_POLICY, TOPIC_SETTINGS[CLEANUP_POLICY].default))


def is_compacted(topic: TopicDescription) -> bool:
    """True if Kafka compacts the topic, or did."""
    return "compact" in cleanup_policy_of(topic)


def partition_of(topic: TopicDescription, partition: object) -> TopicPartition:
    """Return a partition of a topic. Raises UnknownTopicOrPartitionError, TypeError."""
    number = whole_number(partition, "a partition")
    if not 0 <= number < topic.partitions:
        raise no_partition(topic.name, number, topic.partitions)
    return TopicPartition(topic.name, number)


def no_partition(topic: str, partition: int, count: int) -> UnknownTopicOrPartitionError:
    """Return the error of a partition that a topic does not have."""
    known = "partition 0 alone" if count == 1 else f"partitions 0 to {count - 1}"
    return UnknownTopicOrPartitionError(f"topic {topic!r} has {known}, not {partition}")


def settings_of(topic: TopicDescription, topic_defaults: Mapping[str, int]) -> dict[str, int]:
    """A topic's settings that are numbers: its own, else the store's, else the defaults."""
    own = {name: int(one) for name, one in topic.config.items() if name in _NUMBERS}
    config = {**_NUMBERS, **topic_defaults, **own}
    if topic.internal:
        config = {**_NUMBERS, **INTERNAL_TOPIC_CONFIG}
    if cleanup_policy_of(topic) == "compact":
        # The newest record of each key holds, however old it is.
        config["retention.ms"] = config["retention.bytes"] = NO_LIMIT
    # A batch has to fit into a segment.
    config["max.message.bytes"] = min(config["max.message.bytes"], config["segment.bytes"])
    return config


def nothing_to_check() -> None:
    """The file cannot become another one."""


class _KnownTopics:
    """The topics by name: those that exist, and those that are being deleted."""

    def __init__(self) -> None:
        self.existing: dict[str, TopicDescription] = {}
        self.deleting: dict[str, TopicDescription] = {}
        # Existing names with a "." or "_", by what `folded_name` makes of them.
        self._folded: dict[str, set[str]] = {}

    def put(self, name: str, topic: TopicDescription | None) -> None:
        """Take in a topic as it is now; None: there is none. Other threads may look."""
        exists = topic is not None and not topic.deleting
        if topic is not None:
            (self.existing if exists else self.deleting)[name] = topic
        if exists:
            self.deleting.pop(name, None)
        else:
            self.existing.pop(name, None)
            if topic is None:
                self.deleting.pop(name, None)
        folded = folded_name(name)
        if "_" in folded:
            names = self._folded.get(folded, set()) - {name}
            self._folded[folded] = names | {name} if exists else names
            if not self._folded[folded]:
                del self._folded[folded]

    def __getitem__(self, name: str) -> TopicDescription:
        return self.existing.get(name) or self.deleting[name]

    def folded_alike(self, name: str) -> set[str]:
        return self._folded.get(folded_name(name), set())


class TopicRegistry:
    """The topics by name. Every change is durable on return, and before another process sees it.

    A look waits for one that is under way only where there was another before it that is not read
    yet. It raises StoreInUseError, which names the process, if that takes too long.
    """

    def __init__(self, state_path: Path, shared: SharedPage) -> None:
        self._file = TopicsFile(state_path)
        self._changes_path = state_path / CHANGES_FILE_NAME
        self._shared = shared
        # Called before each change: it raises where the file is not the one that was opened.
        self.check_files: Callable[[], None] = nothing_to_check
        self._lock = ThreadLock()  # Of the fields below.
        self._changing_topics = ThreadLock()
        self._topics = _KnownTopics()
        # The same topics by their lines in the file; None before there is one.
        self._by_line: dict[bytes, TopicDescription] | None = None
        # Of the file that was read; -1 where the count was not taken before it was.
        self._count = -1
        self._identity: object = None
        self._generation = 0
        self._departures = self._alterations = 0
        self._follows = False  # The file is another process's to change.

    @classmethod
    def load(cls, store_path: Path, state_path: Path, shared: SharedPage) -> "TopicRegistry":
        """Read the file, or make it from the directories if it is missing.

        Raises CorruptRecordError if it is not what was written, StoreVersionError if another
        version of eoslog wrote it.
        """
        registry = cls(state_path, shared)
        with registry._changing():
            if registry._by_line is None:
                registry._change(topics_of_directories(store_path))
            else:
                registry._file.reserve()
        return registry

    @classmethod
    def follow(cls, state_path: Path, shared: SharedPage) -> "TopicRegistry":
        """Read the file of a store that this process only reads; the counters follow those of the
        processes that change it. Raises as `load`.
        """
        registry = cls(state_path, shared)
        registry._follows = True
        registry._known()
        return registry

    @property
    def follows(self) -> bool:
        """True if this process only reads the store, beside those that change its topics."""
        return self._follows

    def get(self, name: str) -> TopicDescription | None:
        """The topic, unless it does not exist or is being deleted."""
        return self._known().existing.get(name)

    def id_of(self, where: TopicPartition) -> str | None:
        """The id of a partition's topic; None if no user's topic has such a partition."""
        topic = self.get(where.topic)
        if topic is None or topic.internal or not 0 <= where.partition < topic.partitions:
            return None
        return topic.topic_id

    def all(self) -> list[TopicDescription]:
        """Every topic, internal ones too, but none that is being deleted."""
        return list(self._known().existing.values())

    def deleting(self) -> list[TopicDescription]:
        """The topics whose deletion has begun and not ended."""
        return list(self._known().deleting.values())

    def folded_alike(self, name: str) -> set[str]:
        """The names with "." or "_" that `folded_name` makes the same of."""
        return self._known().folded_alike(name)

    @property
    def generation(self) -> int:
        """Rises with each change that is known here, by whichever process."""
        self._known()
        return self._generation

    @property
    def departures(self) -> int:
        """Rises when a topic does not exist any more, or is another one of its name."""
        self._known()
        return self._departures

    @property
    def alterations(self) -> int:
        """Rises when a topic has other settings, or more partitions."""
        self._known()
        return self._alterations

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

    def add(self, *topics: TopicDescription) -> None:
        """Have the topics exist from now on, all of them or none; their directories are in place
        already.
        """
        with self._changing():
            self._change({topic.name: topic for topic in topics})

    def making_partition(self, name: str, partitions: int) -> LockBlock[TopicDescription]:
        """Return a block in which no other process makes a partition of an internal topic.

        Gives the topic, which is added if it is not there; it has the directories that it has. No
        other lock may be waited for in the block.
        """

        def get_or_add(_: object) -> TopicDescription:
            topic = self._topics.existing.get(name)
            if topic is None:
                topic = new_topic(name, partitions, {})
                self._change({name: topic})
            return topic

        return LockBlock(self._changing(), prepare=get_or_add)

    def alter(self, topic: TopicDescription) -> None:
        """Have a topic be as it is given: with other settings, or more partitions, whose
        directories are in place already. The caller is in a `changing_topics` block.
        """
        with self._changing():
            now = self._topics[topic.name]
            self._change({topic.name: replace(topic, holes_below=now.holes_below)})

    def mark_deleting(self, name: str) -> None:
        """Mark the topic as deleted; its directories are still there."""
        with self._changing():
            self._change({name: replace(self._topics[name], deleting=True)})

    def note_holes(self, name: str, partition: int, below: int) -> None:
        """Note that missing offsets below one are no damage in a partition; 0: all are."""
        with self._changing():
            topic = self._topics[name]
            noted = {
                number: one for number, one in topic.holes_below.items() if number != partition
            }
            if below:
                noted[partition] = below
            self._change({name: replace(topic, holes_below=MappingProxyType(noted))})

    def remove(self, name: str) -> None:
        """Forget a topic whose directories are gone."""
        with self._changing():
            self._change({name: None})

    def refresh(self) -> None:
        """Read the file if it was changed, even by a process that died, or was interrupted, before
        it could raise the counter: this one raises it then.
        """
        if self._identity != self._file.identity():
            with self._caught_up():
                pass

    def sync(self) -> None:
        """Put on the disk what a process wrote that was killed before it could sync."""
        self._file.sync()

    def end(self) -> None:
        """Give back the room that is reserved for a change: the store is being closed."""
        self._file.end()

    def _known(self) -> _KnownTopics:
        if self._shared.counter(COUNTER_TOPICS) != self._count:
            with self._caught_up():
                pass
        return self._topics

    def _changing(self) -> LockBlock[None]:
        """Return a block in which this thread alone, of all processes, changes the file."""
        return self._caught_up(self.check_files)

    def _caught_up(self, check: Callable[[], None] = nothing_to_check) -> LockBlock[None]:
        """Return a block in which the file does not change, and all of it is known here."""

        def prepare(holder_died: bool, *_: object) -> None:
            check()
            self._catch_up(holder_died=holder_died)

        return LockBlock(self._shared.held(LOCK_TOPICS), self._lock, prepare=prepare)

    def _catch_up(self, *, holder_died: bool) -> None:
        """Read what was changed, announced or not; the caller holds the locks."""
        counter, identity = self._shared.counter(COUNTER_TOPICS), self._file.identity()
        is_unannounced = holder_died or (counter == self._count and identity != self._identity)
        if is_unannounced and not self._follows:
            self._file.sync()
            counter = self._shared.raise_counter(COUNTER_TOPICS)
        if counter != self._count:
            lines = self._file.read()
            if lines is not None:
                self._take_lines(lines)
            self._count, self._identity = counter, identity

    def _take_lines(self, lines: list[bytes]) -> None:
        """Take in the topics of the file. One with its line of before is the same object."""
        before = self._by_line or {}
        new = [line for line in lines if line not in before]
        topics = parse_entries(self._file.path, self._file.entries(new))
        by_line = before | dict(zip(new, topics.values(), strict=True))
        gone = by_line.keys() - set(lines)
        for line in gone:
            del by_line[line]
        self._take(by_line, {**{before[line].name: None for line in gone}, **topics})

    def _take(
        self,
        by_line: dict[bytes, TopicDescription],
        changed: Mapping[str, TopicDescription | None],
    ) -> None:
        """Take in all topics, of which some changed."""
        known = self._topics
        before = [
            (known.existing[name], now) for name, now in changed.items() if name in known.existing
        ]
        departs = any(_departs(topic, now) for topic, now in before)
        # Equal but for the holes that are noted, which are no setting.
        alters = any(now is not None and topic != now for topic, now in before)
        for name, topic in changed.items():
            known.put(name, topic)
        self._departures += departs
        self._alterations += alters
        self._generation += 1
        # Last: what an interrupt leaves undone, the next look does again.
        self._by_line = by_line

    def _change(self, changed: Mapping[str, TopicDescription | None]) -> None:
        """Write topics that changed, and take them in; the caller is in a `_changing` block."""
        if self._follows:
            raise StoreReadOnlyError(f"{self._file.path} is only read")
        known = (self._by_line or {}).items()
        by_line = {line: topic for line, topic in known if topic.name not in changed}
        by_line |= {_line(topic): topic for topic in changed.values() if topic is not None}
        self._file.write(by_line)
        self._take(by_line, changed)
        self._identity = self._file.identity()
        self._count = self._shared.raise_counter(COUNTER_TOPICS)


def read_topics(state_path: Path) -> dict[str, TopicDescription] | None:
    """Read the topics of the file, those that are being deleted too; None if there is no file.

    Raises CorruptRecordError or StoreVersionError.
    """
    entries = read_entries(state_path)
    return None if entries is None else parse_entries(state_path / FILE_NAME, entries)


def _departs(before: TopicDescription, now: TopicDescription | None) -> bool:
    return now is None or now.deleting or now.topic_id != before.topic_id


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


def _line(topic: TopicDescription) -> bytes:
    entry: Entry = {
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
    return line_of(topic.name, entry)


def parse_entries(path: Path, entries: Mapping[str, Entry]) -> dict[str, TopicDescription]:
    """Return the topics of entries that were read. Raises CorruptRecordError."""
    try:
        return {name: _parse_entry(name, entry) for name, entry in entries.items()}
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        InvalidTopicError,
        InvalidConfigError,
    ) as error:
        raise CorruptRecordError(str(path), 0, f"not a list of topics: {error!r}") from error


def _parse_entry(name: str, entry: Entry) -> TopicDescription:
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
        MappingProxyType(parse_kafka_topic_config(config)),
        name in INTERNAL_TOPICS,
        entry.get("deleting") is True,
        MappingProxyType({int(number): int(below) for number, below in holes_below.items()}),
        created_ms,
    )


def partition_directories(store_path: Path) -> list[tuple[TopicPartition, Path]]:
    """The directories at the top of a store that are named after a partition of a lawful topic."""
    found = []
    with named_os_errors(f"reading {store_path}"):
        for path in sorted(store_path.iterdir()):
            try:
                topic_partition = TopicPartition.parse(path.name)
                check_topic_name(topic_partition.topic)
            except (ValueError, InvalidTopicError):
                continue
            if path.is_dir() and not path.is_symlink():
                found.append((topic_partition, path))
    return found


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
        elif topic_id == known.topic_id:  # Else an earlier topic of the name left it.
            topics[name] = replace(known, partitions=max(known.partitions, number + 1))
    return topics
