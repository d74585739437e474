"""Creation and deletion of topics: directories, the entry in the registry, and dependent state.

The registry decides. Creating: directories first, then the entry. Deleting: the entry is marked,
then everything goes, then the entry; what was cut short is finished at the next opening, or by
another process that has the store open. One process at a time creates or deletes. Files that the
operating system does not remove do not block other topics: the deletion is tried again.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from eoslog.common.config import altered_topic_config, parse_topic_config, settings_text
from eoslog.common.topic_name import VERSION_TOPIC, check_user_topic_name, folded_name
from eoslog.errors import (
    EoslogError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogClosedError,
    StoreInUseError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.offsets import GroupOffsets
from eoslog.session.file_hold import FileHold
from eoslog.session.paths import StorePaths
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.partition_directory import make_partition_directories
from eoslog.storage.topic_registry import PARTITIONS_MAX, TopicDescription, TopicRegistry, new_topic
from eoslog.transactions.named_producers import NamedProducers

if TYPE_CHECKING:
    from eoslog.producer.producer import Producer, ProducerInternals

_log = logging.getLogger(__name__)


class StoreTopics:
    """Creates and deletes the topics of one store, whose lock guards it."""

    def __init__(
        self,
        paths: StorePaths,
        registry: TopicRegistry,
        partitions: OpenedPartitions,
        names: NamedProducers,
        group_offsets: GroupOffsets,
        file_hold: FileHold,
    ) -> None:
        self._paths = paths
        self._registry = registry
        self._partitions = partitions
        self._names = names
        self._group_offsets = group_offsets
        self._file_hold = file_hold
        self._unremoved: dict[str, EoslogError] = {}
        self._kept: set[str] = set()  # Of these, by a backup.
        self._followed = registry.alterations

    def create(
        self,
        partitions: Mapping[str, int],
        config: Mapping[str, object] | None,
        *,
        exist_ok: bool = False,
    ) -> dict[str, TopicDescription]:
        """Create topics, with their partition counts by name; all of them, or none.

        See `Store.create_topics`.
        """
        topics = {name: self._described(name, count, config) for name, count in partitions.items()}
        with self._registry.changing_topics():
            self._finish_deletions()  # Of a process that died in the middle of one.
            found: dict[str, TopicDescription] = {}
            folded: dict[str, str] = {}
            for topic in topics.values():
                existing = self._existing(topic, exist_ok=exist_ok)
                if existing is not None:
                    found[topic.name] = existing
                    continue
                alike = self._registry.folded_alike(topic.name)
                twin = folded.setdefault(folded_name(topic.name), next(iter(alike), topic.name))
                if twin != topic.name:
                    raise InvalidTopicError(
                        f"topic {topic.name!r} differs from {twin!r} only in '.' against '_'"
                    )
            new = [topic for topic in topics.values() if topic.name not in found]
            if new:
                make_partition_directories(
                    self._paths,
                    [(where, one.topic_id) for one in new for where in one.topic_partitions()],
                )
                self._registry.add(*new)
                for topic in new:
                    own = settings_text(topic.config)
                    _log.info(
                        "topic %s: created, partitions=%d%s", topic.name, topic.partitions, own
                    )
        return topics | found

    def _existing(self, topic: TopicDescription, *, exist_ok: bool) -> TopicDescription | None:
        """The topic of that name, if there is one; None if there is none.

        Raises TopicAlreadyExistsError unless that is in order, and it has as many partitions; the
        error of its removal, if an earlier one is not removed yet.
        """
        name = topic.name
        if name in self._unremoved:
            error = self._unremoved[name]
            error.add_note(f"an earlier topic {name!r} is not removed yet")
            raise error
        found = self._registry.get(name)
        if found is None:
            return None
        if not exist_ok:
            raise TopicAlreadyExistsError(f"topic {name!r} exists already")
        if found.partitions != topic.partitions:
            raise TopicAlreadyExistsError(
                f"topic {name!r} exists already, with {found.partitions} partitions, not "
                f"{topic.partitions}"
            )
        return found

    @staticmethod
    def _described(
        name: str, partitions: int, config: Mapping[str, object] | None
    ) -> TopicDescription:
        """The topic as it would be."""
        check_user_topic_name(name)
        if name == VERSION_TOPIC:
            raise InvalidTopicError(f"{name!r} stands for the versions of staged jobs in groups")
        return new_topic(name, _partition_count(partitions), parse_topic_config(config))

    def alter(
        self,
        name: str,
        config: Mapping[str, object] | None,
        partitions: int | None,
        producers: "Callable[[], Iterable[Producer]]",
    ) -> TopicDescription:
        """See `Store.alter_topic`."""
        check_user_topic_name(name)
        with self._registry.changing_topics():
            self._finish_deletions()
            topic = self._registry.get(name)
            if topic is None:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
            altered = replace(
                topic,
                config=MappingProxyType(
                    altered_topic_config(topic.config, {} if config is None else config)
                ),
                partitions=_altered_count(topic, partitions),
            )
            if altered != topic:
                added = altered.topic_partitions()[topic.partitions :]
                make_partition_directories(self._paths, [(one, topic.topic_id) for one in added])
                self._registry.alter(altered)
                _log.info(
                    "topic %s: altered from partitions=%d%s to partitions=%d%s",
                    *(name, topic.partitions, settings_text(topic.config)),
                    *(altered.partitions, settings_text(altered.config)),
                )
        self.follow_alterations(producers())
        return altered

    def follow_alterations(self, producers: "Iterable[Producer]") -> None:
        """Have what is open here go on with the settings and partitions that topics have now."""
        alterations = self._registry.alterations
        if alterations != self._followed:
            self._partitions.follow_topics()
            for producer in _internals(producers):
                producer.follow_topics()
            self._followed = alterations

    def delete(self, name: str, producers: "Callable[[], Iterable[Producer]]") -> None:
        """See `Store.delete_topic`.

        `producers()` is called once the topic is marked as deleted: later ones do not find it.
        """
        with self._registry.changing_topics():
            self._finish_deletions()
            if self._registry.get(name) is None:
                raise UnknownTopicOrPartitionError(f"topic {name!r} has been deleted by now")
            self._registry.mark_deleting(name)
            for producer in _internals(producers()):
                producer.forget_topic(name)
            self._finish_deletions()
            if name in self._unremoved and name not in self._kept:
                raise self._unremoved[name]

    def unremoved(self) -> dict[str, EoslogError]:
        """Errors that keep deleted topics from being removed, as this process met them last."""
        deleting = {topic.name for topic in self._registry.deleting()}
        return {
            name: error
            for name, error in self._unremoved.items()
            if name in deleting and name not in self._kept
        }

    def finish_deletions(self) -> None:
        """Remove what is left of topics that are being deleted; durable on return.

        What another process is just removing is left to it. What cannot be removed is logged, and
        `unremoved`; it is tried again with the next opening, creation, deletion, or look around.
        """
        if self._registry.deleting():
            with self._registry.changing_topics_if_free() as nobody_is_at_it:
                if nobody_is_at_it:
                    self._finish_deletions()

    def _finish_deletions(self) -> None:
        self._registry.refresh()
        with self._file_hold.removing() as may_remove:
            if may_remove:
                self._remove_deleted()
                return
        kept = {topic.name for topic in self._registry.deleting()} - self._unremoved.keys()
        self._kept |= kept
        self._unremoved |= {
            name: StoreInUseError(f"topic {name!r} is deleted, and a backup copies its files")
            for name in kept
        }

    def _remove_deleted(self) -> None:
        unremoved: dict[str, EoslogError] = {}
        for topic in self._registry.deleting():
            try:
                self._remove(topic)
            except LogClosedError:
                raise  # The store is being closed.
            except EoslogError as error:
                unremoved[topic.name] = error
                if str(error) != str(self._unremoved.get(topic.name)):
                    _log.warning("%s is deleted, and not all of it removed: %s", topic.name, error)
        self._unremoved, self._kept = unremoved, set()

    def _remove(self, topic: TopicDescription) -> None:
        self._partitions.remove(topic)
        self._names.forget_topic(topic.name)
        self._group_offsets.forget_topic(topic.name)
        self._registry.remove(topic.name)
        _log.info("topic %s: deleted, with %d partitions", topic.name, topic.partitions)

    def notice_changes(self, producers: "Collection[Producer]") -> None:
        """Let go of what other processes deleted, follow what they altered, and finish what one of
        them began and left.
        """
        self._registry.refresh()
        self.follow_alterations(producers)
        gone = self._partitions.take_deleted()
        if gone:
            for producer in _internals(producers):
                for name in gone:
                    producer.forget_topic(name)
        self.finish_deletions()


def _internals(producers: "Iterable[Producer]") -> "Iterator[ProducerInternals]":
    for producer in producers:
        from eoslog.producer.producer import ProducerInternals  # Loaded, as there is one.

        yield ProducerInternals(producer)


def _partition_count(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidPartitionsError(f"partitions must be an int, got {given!r}")
    if not 1 <= given <= PARTITIONS_MAX:
        raise InvalidPartitionsError(f"partitions {given} is outside [1, {PARTITIONS_MAX}]")
    return given


def _altered_count(topic: TopicDescription, given: int | None) -> int:
    count = topic.partitions if given is None else _partition_count(given)
    if count < topic.partitions:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {topic.partitions} partitions, which cannot become {count}: "
            "records would be lost"
        )
    return count
