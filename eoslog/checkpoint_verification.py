"""Whether the checkpoints at the top of a store fit its logs: none knows of more than there is."""

from eoslog.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_checkpoint,
)
from eoslog.damage import Problem, problem, problem_of
from eoslog.errors import CorruptRecordError
from eoslog.store_paths import StorePaths
from eoslog.topic_partition import TopicPartition

Checkpoints = dict[str, dict[TopicPartition, int]]


def read_checkpoints(paths: StorePaths) -> tuple[Checkpoints, list[Problem]]:
    """What they say now; what is wrong with the files themselves."""
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
    """What they said of a partition, whose log ends there or has grown to there since.

    A high watermark may be beyond it: a power cut takes what was not synced.
    """
    problems = []
    for name in (RECOVERY_POINT, LOG_START_OFFSET):
        offset = checkpoints.get(name, {}).get(where, 0)
        if offset > log_end_offset:
            reason = f"{where} has offset {offset} here, and ends at {log_end_offset}"
            problems.append(problem(paths.root / name, reason))
    return problems
