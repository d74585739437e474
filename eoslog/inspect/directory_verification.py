"""Check that the directories of a store are those of its topics, and that nothing else is there."""

from contextlib import suppress
from pathlib import Path

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.identity_files import PARTITION_METADATA, read_partition_metadata
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.paths import StorePaths
from eoslog.storage.damage import Problem, problem, problem_of
from eoslog.storage.topic_registry import TopicRegistry, partition_directories


def verify_directories(paths: StorePaths, registry: TopicRegistry) -> list[Problem]:
    """Report what lies where no topic has anything, in a store's own directories.

    A creation that was cut short leaves directories with their metadata alone; the next one of the
    name takes them over, and so they are no problem. Missing ones are met when they are opened.
    """
    with named_os_errors(f"looking at the directories of {paths.root}"):
        if not registry.follows:
            with registry.changing_topics():
                registry.refresh()
                return _problems(paths, registry)
        # Of other processes, which are not held up: it counts if no topic came or went.
        while True:
            generation = registry.generation
            with suppress(FileNotFoundError):
                problems = _problems(paths, registry)
                if registry.generation == generation:
                    return problems


def _problems(paths: StorePaths, registry: TopicRegistry) -> list[Problem]:
    problems = []
    for where, path in partition_directories(paths.root):
        problems += _wrong_directory(registry, where, path)
    for directory in (paths.spares, paths.cut):
        problems += _strays(registry, directory)
    return problems


def _wrong_directory(registry: TopicRegistry, where: TopicPartition, path: Path) -> list[Problem]:
    topic = registry.get(where.topic)
    if topic is None and _is_being_deleted(registry, where):
        return []
    if topic is None or where.partition >= topic.partitions:
        strays = [one.name for one in path.iterdir() if not one.name.startswith(PARTITION_METADATA)]
        if not strays:
            return []
        whose = "no topic" if topic is None else f"no partition of {topic.name}"
        return [problem(path, f"it belongs to {whose} and holds {len(strays)} files")]
    try:
        topic_id = read_partition_metadata(path)
    except CorruptRecordError as error:
        return [problem_of(error)]
    if topic_id not in (None, topic.topic_id):
        reason = f"topic id {topic_id}, but topic {topic.name} has {topic.topic_id}"
        return [problem(path / PARTITION_METADATA, reason)]
    return []


def _strays(registry: TopicRegistry, directory: Path) -> list[Problem]:
    """Spare files, or cut bytes, of partitions that are not there."""
    if not directory.is_dir():
        return []
    found = []
    for path in sorted(directory.iterdir()):
        try:
            where = TopicPartition.parse(path.name)
        except ValueError:
            continue  # Set aside by a repair.
        topic = registry.get(where.topic)
        is_there = topic is not None and where.partition < topic.partitions
        if not is_there and not _is_being_deleted(registry, where) and any(path.iterdir()):
            found.append(problem(path, f"{where} is not there any more, but has files here"))
    return found


def _is_being_deleted(registry: TopicRegistry, where: TopicPartition) -> bool:
    """A deletion that was cut short is finished with the next one, or the next opening."""
    return any(topic.name == where.topic for topic in registry.deleting())
