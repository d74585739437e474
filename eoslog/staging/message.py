"""Message of a task attempt to the driver: the files that it staged, with sizes and checksums.

A message is small, can be pickled, and `dataclasses.asdict` of it can be written as JSON;
`StagedMessage(**that)` is the message again.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from eoslog.common.topic_name import check_user_topic_name
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StagedCommitError
from eoslog.staging.names import directory_name

# Staged files have random producer ids in this range; those that a store gives out are below it.
STAGED_PRODUCER_ID_MIN = 1 << 62
STAGED_PRODUCER_ID_UPPER_BOUND = 1 << 63

_FILE_NAME = re.compile(r"([A-Za-z0-9._-]+)\.[0-9]+\.batches", re.ASCII)
_CRC_UPPER_BOUND = 1 << 32
_TEXTS = ("topic", "name", "topic_id")


def new_staged_producer_id() -> int:
    """Return a random id of 62 bits: no store assigns these, and no two files have the same."""
    return STAGED_PRODUCER_ID_MIN + (int.from_bytes(os.urandom(8), "big") >> 2)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged file: record batches of one partition, with a producer id of their own.

    `topic_id` is that of the topic it was staged for; "" if the writer did not know it.
    """

    topic: str
    partition: int
    name: str
    bytes: int
    records: int
    producer_id: int
    crc: int
    topic_id: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = str if field.name in _TEXTS else int
            if not isinstance(value, wanted) or isinstance(value, bool):
                got = type(value).__name__
                raise TypeError(
                    f"a staged file's {field.name} must be {wanted.__name__}, got {got}"
                )
        check_user_topic_name(self.topic)
        matched = _FILE_NAME.fullmatch(self.name)
        if matched is None:
            raise ValueError(f"{self.name!r} is not the name of a staged file")
        if matched[1] != f"{self.topic}-{self.partition}":
            raise ValueError(
                f"{self.name!r} is not the name of a staged file of {self.topic}-{self.partition}"
            )
        in_range = (
            self.partition >= 0
            and self.bytes > 0
            and self.records > 0
            and STAGED_PRODUCER_ID_MIN <= self.producer_id < STAGED_PRODUCER_ID_UPPER_BOUND
            and 0 <= self.crc < _CRC_UPPER_BOUND
        )
        if not in_range:
            raise ValueError(f"a staged file with a number out of its range: {self}")

    def as_row(self) -> tuple[str, int, str, int, int, int, int]:
        """Return the file's row in a decided job's list: the fields in order, without the topic id,
        which is once in the job.
        """
        counts = (self.bytes, self.records, self.producer_id, self.crc)
        return (self.topic, self.partition, self.name, *counts)

    @property
    def topic_partition(self) -> TopicPartition:
        """Partition that the records are for."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class StagedMessage:
    """Message of one attempt, which the driver passes to `Store.commit_staged`.

    `synced`: the files and their names are on disk.
    """

    app_id: str
    run_id: str
    attempt: str
    files: tuple[StagedFile, ...] = ()
    synced: bool = False

    def __post_init__(self) -> None:
        for name in ("app_id", "run_id", "attempt"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(
                    f"{name} of a staged message must be str, got {getattr(self, name)!r}"
                )
        if not isinstance(self.synced, bool):
            raise TypeError(f"a staged message's synced must be bool, got {self.synced!r}")
        object.__setattr__(self, "files", tuple(_as_file(file) for file in self.files))

    @property
    def records(self) -> int:
        """Number of records in all files."""
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


def _as_file(file: StagedFile | Mapping[str, Any]) -> StagedFile:
    return file if isinstance(file, StagedFile) else StagedFile(**file)


def check_version(version: int) -> None:
    """Raise TypeError or ValueError unless it is a version of an application."""
    if not isinstance(version, int) or isinstance(version, bool):
        raise TypeError(f"version must be an int, got {type(version).__name__}")
    if not 0 <= version < 1 << 63:
        raise ValueError(f"version {version} is outside [0, 2**63)")


def run_of(app_id: str, messages: Iterable[StagedMessage], run_id: str | None) -> str | None:
    """Return the run of all messages. Raises StagedCommitError if they differ."""
    directory_name(app_id, "app_id")
    for message in messages:
        if not isinstance(message, StagedMessage):
            raise TypeError(f"expected a StagedMessage, got {type(message).__name__}")
        if message.app_id != app_id:
            raise StagedCommitError(f"a message of application {message.app_id!r}, not {app_id!r}")
        if run_id is None:
            run_id = message.run_id
        if message.run_id != run_id:
            raise StagedCommitError(
                f"application {app_id!r}: a message of run {message.run_id!r} among those of run "
                f"{run_id!r}: one run is committed at a time"
            )
    if run_id is not None:
        directory_name(run_id, "run_id")
    return run_id
