"""Check that the checkpoints of a store fit its logs: none knows of more than there is."""

from collections.abc import Mapping

from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_checkpoint,
)
from eoslog.session.store_paths import StorePaths
from eoslog.storage.damage import Problem, problem, problem_of
from eoslog.storage.partition_directory import lost_by_pages

Checkpoints = dict[str, dict[TopicPartition, int]]


def read_checkpoints(paths: StorePaths) -> tuple[Checkpoints, list[Problem]]:
    """Read the checkpoints; return also the problems of the files themselves."""
    found: Checkpoints = {}
    problems = []
    for name in (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK):
        try:
            found[name] = read_checkpoint(paths.root / name)
        except CorruptRecordError as error:
            problems.append(problem_of(error))
    return found, problems


def verify_checkpoints(
    paths: StorePaths, checkpoints: Checkpoints, where: TopicPartition, log_end_offset: int
) -> list[Problem]:
    """Check what they say of a partition, whose log ends there or has grown to there since.

    A high watermark may be beyond it: a power cut takes what was not synced.
    """
    problems = []
    for name in (RECOVERY_POINT, LOG_START_OFFSET):
        offset = checkpoints.get(name, {}).get(where, 0)
        if offset > log_end_offset:
            reason = f"{where} has offset {offset} here, and ends at {log_end_offset}"
            problems.append(problem(paths.root / name, reason))
    return problems


def verify_lost_partitions(
    paths: StorePaths, checkpoints: Checkpoints, made_anew: Mapping[TopicPartition, int]
) -> list[Problem]:
    """Partitions of internal topics whose directories are gone, with all that was in them.

    Those of users' topics are met when they are opened. `made_anew` are those that this process has
    made since, with the offsets that the checkpoints or their pages had.
    """
    problems = []
    for where, offset in sorted(made_anew.items()):
        reason = f"its directory was gone, and its log went up to offset {offset}; it began anew"
        problems.append(problem(paths.partition(where), reason))
    known: dict[TopicPartition, int] = {}
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        for where, offset in checkpoints.get(name, {}).items():
            known[where] = max(offset, known.get(where, 0))
    for where, offset in lost_by_pages(paths).items():
        known[where] = max(offset, known.get(where, 0))
    for where, offset in sorted(known.items()):
        path = paths.partition(where)
        is_lost = offset > 0 and where.topic in INTERNAL_TOPICS and where not in made_anew
        if is_lost and not path.is_dir():
            reason = f"the directory is gone, and its log went up to offset {offset}"
            problems.append(problem(path, reason))
    return problems
