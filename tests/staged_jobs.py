"""Staged jobs as tests make them, and what became of them, read back from the log."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eoslog.bindings.partitioner import partition_for_key
from eoslog.errors import StagedJobIncompleteError, StoreFullError
from eoslog.staging.commit import StagedCommit
from eoslog.staging.message import STAGED_PRODUCER_ID_MIN, StagedMessage
from eoslog.staging.names import TRASH_DIRECTORY
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import engine_of, parts_of

TOPIC = "orders"
PARTITIONS = 3
APP = "app"
TRASH = f"{TRASH_DIRECTORY}/"

MEMORY = Path("/dev/shm")
MEMORY_FREE_BYTES_MIN = 1 << 30


@contextmanager
def quick_directory(otherwise: Path) -> Iterator[Path]:
    """A directory in memory, where a sync takes no time: what a killed process leaves is the same.

    Where there is no such file system, or little room, `otherwise`.
    """
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < MEMORY_FREE_BYTES_MIN:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="eoslog-test-", dir=MEMORY) as directory:
        yield Path(directory)


def key_of(number: int) -> bytes:
    return b"key-%d" % (number % 20)


def value_of(number: int) -> bytes:
    """A record that says which one it is, of a size of its own."""
    return b"%07d" % number + b"." * (number * 31 % 90)


def partition_of(number: int) -> int:
    return partition_for_key(key_of(number), PARTITIONS)


def stage(
    store_path: Path,
    run_id: str,
    attempt: str,
    numbers: range,
    *,
    app_id: str = APP,
    topic: str = TOPIC,
    durability: str = "commit",
    batch_bytes_max: int = 600,
    timestamps: Any = None,
) -> StagedMessage:
    """Stage the numbered records as one attempt of a task, in many small batches."""
    writer = StagedWriter(
        store_path,
        app_id,
        run_id,
        attempt,
        partitions={topic: PARTITIONS},
        durability=durability,
        batch_bytes_max=batch_bytes_max,
    )
    values = [value_of(number) for number in numbers]
    writer.append(topic, None, values, [key_of(number) for number in numbers], timestamps)
    return writer.close()


def stage_job(
    store_path: Path, run_id: str, numbers: range, tasks: int = 2, name: str = "", **options: Any
) -> list[StagedMessage]:
    """Stage the numbered records with so many tasks, each of which takes a stretch of them.

    `name` begins the attempts' names, which are used once in a run.
    """
    step = -(-len(numbers) // tasks)
    stretches = [numbers[task * step : (task + 1) * step] for task in range(tasks)]
    return [
        stage(store_path, run_id, f"{name}{task:06d}-0", stretch, **options)
        for task, stretch in enumerate(stretches)
    ]


def load(
    store: Any,
    app_id: str,
    records: Mapping[tuple[str, int], Sequence[bytes]],
    offsets: Any = None,
) -> StagedCommit:
    """What one program does alone: stage records by partition, as one task, and commit them, with
    offsets of groups, as the next version of its application.
    """
    run_id = store.begin_run(app_id)
    topics = store.topics()
    partitions = {topic: topics[topic].partitions for topic, _ in records}
    with StagedWriter(
        store.path, app_id, run_id, "0", partitions=partitions, durability=store.durability
    ) as writer:
        for (topic, number), values in records.items():
            writer.append(topic, number, values)
    version = store.application(app_id).version + 1
    return store.commit_staged(app_id, version, [writer.message], offsets=offsets)


def no_room(*_: Any, **__: Any) -> Any:
    """In the place of what writes, where the disk is full."""
    raise StoreFullError("no room")


def leave_undone(
    store: Any,
    owner: Any,
    name: str,
    messages: Sequence[StagedMessage] = (),
    version: int = 0,
    refuse: Any = no_room,
    **options: Any,
) -> None:
    """Decide a job that is not completed, since a call is refused."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, refuse)
        with pytest.raises(StagedJobIncompleteError):
            store.commit_staged(APP, version, list(messages), **options)


def visible_numbers(store: Any, topic: str = TOPIC) -> dict[int, list[int]]:
    """The numbers of the records that a consumer can see, in the order of offsets, by partition."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for number in range(PARTITIONS):
        partition = engine_of(store).partition(topic, number)
        offset = partition.log_start_offset
        while True:
            records, next_offset = partition.fetch_records(offset, 1000, 1 << 20)
            assert [record.offset for record in records] == list(range(offset, next_offset))
            found[number] += [int(record.value[:7]) for record in records]
            if next_offset == offset:
                break
            offset = next_offset
    return found


def expected_numbers(*jobs: range) -> dict[int, list[int]]:
    """What is visible once these jobs, and nothing else, were committed in this order."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for job in jobs:
        for number in job:
            found[partition_of(number)].append(number)
    return found


def staged_producers(store: Any, topic: str = TOPIC) -> set[int]:
    """The producer ids of staged files that partitions still remember."""
    return {
        state.producer_id
        for number in range(PARTITIONS)
        for state in store.partition(topic, number).producers()
        if state.producer_id >= STAGED_PRODUCER_ID_MIN
    }


def staged_files(store_path: Path) -> list[str]:
    """What a decision could find below the staging directory, relative to it."""
    return [name for name in _files_below_staging(store_path) if not name.startswith(TRASH)]


def trash(store_path: Path) -> list[str]:
    """What was put away and is not removed yet."""
    return [name for name in _files_below_staging(store_path) if name.startswith(TRASH)]


def keep_leftovers(store: Any) -> None:
    """Have the store's thread remove nothing that jobs leave from now on, however slow the test."""
    parts_of(store).staged.leftovers.watch(lambda: None)


def _files_below_staging(store_path: Path) -> list[str]:
    staging = store_path / "staging"
    # Others may be removing them: `os.walk` passes over what is gone.
    found = (Path(folder) / name for folder, _, names in os.walk(staging) for name in names)
    return sorted(str(path.relative_to(staging)) for path in found)
