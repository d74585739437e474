"""A job that is decided, or about to be: its files, its partitions and bounds, its offsets.

The state log's record holds it as JSON. The partitions' bounds are always there, so that readers
can be held even if the rest is lost. The list of files and offsets is there too, unless it is long.
Then it is in a file of its own, beside the staged ones, and the record holds that file's size and
digest.

The record also holds the offsets of groups that the job commits: before the decision nothing of
them is in `__consumer_offsets`, and the process that completes the job has all it needs. Each
partition gets a transaction of one batch, with a producer id of its own and a commit marker. A
partition that knows the id has the batch, so no offset is written twice, over a newer one.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.file_descriptor import open_regular
from eoslog.common.json_text import check_kinds, fields_read_of, loads_json
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StagedCommitError
from eoslog.fs.atomic_file import sync_directory, write_atomically
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories
from eoslog.fs.shared_syncs import run_together, with_those_above
from eoslog.groups.metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.records import (
    OffsetKey,
    OffsetValue,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.staging.message import StagedFile, StagedMessage, new_staged_producer_id
from eoslog.staging.names import attempt_path, is_directory_name

# The internal log keeps every decision: longer lists would make up most of it.
INLINE_MANIFEST_BYTES_MAX = 16 << 10
# A file of so many bytes becomes a segment of its partition if it can. Smaller ones are copied:
# each segment is four more files to list, to open and to delete.
WHOLE_FILE_BYTES_MIN = 4 << 20
# For a smaller job a thread costs more than it saves.
BYTES_FOR_THREADS = 4 << 20
# Of more than half a million partitions; far below what a record of the internal log may hold.
BOUNDS_BYTES_MAX = 16 << 20
# Keys and values of one partition: one batch, far smaller than an internal topic takes.
OFFSETS_BYTES_MAX = 16 << 20

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
OffsetsOfGroups = Mapping[str | ConsumerGroupMetadata, Offsets]
FindTopicId = Callable[[TopicPartition], str | None]


class StagedOffset(NamedTuple):
    """One offset of a group."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class StagedOffsets:
    """Offsets that a job commits in one partition of `__consumer_offsets`.

    `topic_ids` has the ids of the topics: a later topic of the same name has another one.
    """

    number: int
    producer_id: int
    topic_ids: Mapping[str, str]
    offsets: tuple[StagedOffset, ...]

    def as_row(self) -> list[Any]:
        """Return the row in the record of the decision."""
        return [self.number, self.producer_id, dict(self.topic_ids), list(self.offsets)]

    @classmethod
    def of_row(cls, row: list[Any]) -> "StagedOffsets":
        """Restore from a row of `as_row`."""
        number, producer_id, topic_ids, offsets = row
        found = tuple(StagedOffset(*fields) for fields in offsets)
        check_kinds(int, number, producer_id)
        for one in found:
            check_kinds(str, one.group, one.topic, one.metadata, topic_ids[one.topic])
            check_kinds(int, one.partition, one.offset, one.leader_epoch, one.commit_timestamp_ms)
        return cls(number, producer_id, topic_ids, found)

    @property
    def offset_keys(self) -> frozenset[OffsetKey]:
        """Groups and partitions of these offsets."""
        return frozenset(
            OffsetKey(one.group, TopicPartition(one.topic, one.partition)) for one in self.offsets
        )

    def columns(self, find_topic_id: FindTopicId) -> tuple[list[bytes], list[bytes]]:
        """Return keys and values of the records, without those of deleted topics."""
        keys, values = [], []
        for one in self.offsets:
            where = TopicPartition(one.topic, one.partition)
            if find_topic_id(where) != self.topic_ids[one.topic]:
                continue
            value = OffsetValue(one.offset, one.leader_epoch, one.metadata, one.commit_timestamp_ms)
            keys.append(encode_offset_key(one.group, where))
            values.append(encode_offset_value(value))
        return keys, values


@dataclass(frozen=True, slots=True)
class JobFile:
    """One file of a job, and its path."""

    path: Path
    file: StagedFile

    @property
    def is_large(self) -> bool:
        """True if the file becomes a segment without a copy, if it can."""
        return self.file.bytes >= WHOLE_FILE_BYTES_MIN


@dataclass(frozen=True, slots=True)
class StagedJob:
    """Job that one decision makes part of the log.

    `bounds` holds, for each partition, the offset at which readers stop until the job is complete;
    `topic_ids` has the ids of the topics: a later topic of the same name has another one.
    """

    app_id: str
    version: int
    run_path: Path
    topic_ids: Mapping[str, str]
    bounds: Mapping[TopicPartition, int]
    files: Sequence[JobFile]
    offsets: Sequence[StagedOffsets] = ()

    @property
    def records(self) -> int:
        return sum(one.file.records for one in self.files)

    @property
    def producer_ids(self) -> Mapping[TopicPartition, list[int]]:
        """Producer ids of the files of each partition."""
        found: dict[TopicPartition, list[int]] = {}
        for one in self.files:
            found.setdefault(one.file.topic_partition, []).append(one.file.producer_id)
        return found

    @property
    def all_producer_ids(self) -> frozenset[int]:
        """Producer ids of the files, and of the batches of offsets."""
        of_files = (one.file.producer_id for one in self.files)
        return frozenset((*of_files, *(one.producer_id for one in self.offsets)))

    @property
    def offset_keys(self) -> frozenset[OffsetKey]:
        """Groups and partitions of which the job commits offsets."""
        return frozenset(key for one in self.offsets for key in one.offset_keys)

    def described(self, sync: bool) -> Mapping[str, Any]:
        """Return the job as its record holds it; write a long list of files to its own file.

        Raises StagedCommitError if there are more partitions than a record can name.
        """
        topics: dict[str, Any] = {
            topic: {"topic_id": topic_id, "bounds": {}}
            for topic, topic_id in self.topic_ids.items()
        }
        for where, bound in self.bounds.items():
            topics[where.topic]["bounds"][str(where.partition)] = bound
        if len(json.dumps(topics, separators=(",", ":"))) > BOUNDS_BYTES_MAX:
            raise StagedCommitError(f"a job of {len(self.bounds)} partitions: too many for one job")
        manifest = self._manifest()
        encoded = json.dumps(manifest, separators=(",", ":")).encode()
        if len(encoded) <= INLINE_MANIFEST_BYTES_MAX:
            return {"topics": topics, "manifest": manifest}
        digest = hashlib.sha256(encoded).hexdigest()
        self._write_manifest(_manifest_name(digest), encoded, sync)
        return {"topics": topics, "manifest_bytes": len(encoded), "manifest_sha256": digest}

    def _write_manifest(self, name: str, encoded: bytes, sync: bool) -> None:
        with named_os_errors(f"creating {self.run_path}"):
            make_directories(self.run_path)
        write_atomically(self.run_path / name, encoded, sync=sync)
        if sync:
            # There may be no staged files, whose writers have synced these names.
            above = with_those_above(self.run_path.parent, self.run_path.parents[2])
            run_together([partial(sync_directory, one) for one in above])

    def _manifest(self) -> list[Any] | dict[str, Any]:
        """Return the files by attempt, and the offsets if there are any."""
        attempts: dict[str, list[Any]] = {}
        for one in self.files:
            attempts.setdefault(one.path.parent.name, []).append(one.file.as_row())
        files = list(attempts.items())
        if not self.offsets:
            return files
        return {"files": files, "offsets": [one.as_row() for one in self.offsets]}


def files_of_messages(staging_path: Path, messages: Iterable[StagedMessage]) -> list[JobFile]:
    """Return the files that messages name, in their order."""
    found = []
    for message in messages:
        directory = attempt_path(staging_path, message.app_id, message.run_id, message.attempt)
        found += [JobFile(directory / file.name, file) for file in message.files]
    return found


def threads_for(files: Sequence[JobFile], parts: int) -> int:
    """Return how many threads pay off for files of so many parts."""
    if sum(one.file.bytes for one in files) < BYTES_FOR_THREADS:
        return 1
    return min(parts, os.cpu_count() or 1)


def bounds_of_record(described: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return the bounds in a record. Raises CorruptRecordError."""
    with fields_read_of("a decided job"):
        bounds = {
            TopicPartition(topic, int(partition)): bound
            for topic, entry in described["topics"].items()
            for partition, bound in entry["bounds"].items()
        }
        check_kinds(int, *bounds.values())
        return bounds


def topic_ids_of_record(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the topic ids in a record. Raises CorruptRecordError."""
    with fields_read_of("a decided job"):
        found = {topic: entry["topic_id"] for topic, entry in described["topics"].items()}
        check_kinds(str, *found.values())
        return found


def job_of_record(app_id: str, version: int, run: Path, described: Mapping[str, Any]) -> StagedJob:
    """Return the job that a record describes.

    Raises StagedCommitError if its list of files is missing or damaged, CorruptRecordError if the
    record, or the list in it, is damaged.
    """
    topic_ids, bounds = topic_ids_of_record(described), bounds_of_record(described)
    with fields_read_of(f"the list of files of a job of application {app_id!r}"):
        manifest = described.get("manifest")
        if manifest is None:
            manifest = _read_manifest(
                run, described["manifest_bytes"], described["manifest_sha256"]
            )
        rows_of_offsets = []
        if isinstance(manifest, dict):
            rows_of_offsets, manifest = manifest["offsets"], manifest["files"]
        files = [
            _file_of_record(run, attempt, StagedFile(*fields))
            for attempt, rows in manifest
            for fields in rows
        ]
        offsets = [StagedOffsets.of_row(row) for row in rows_of_offsets]
        return StagedJob(app_id, version, run, topic_ids, bounds, files, offsets)


def _file_of_record(run: Path, attempt: str, file: StagedFile) -> JobFile:
    """Return a file of a job, in the directory of its attempt, below that of the run."""
    if not is_directory_name(attempt):
        raise ValueError(f"{attempt!r:.80} is not the name of an attempt's directory")
    return JobFile(run / attempt / file.name, file)


def manifest_path(run: Path, described: Mapping[str, Any]) -> Path | None:
    """Return the file that has the list of a job's files; None if the record has it."""
    digest = described.get("manifest_sha256")
    return None if digest is None else run / _manifest_name(digest)


def _manifest_name(digest: str) -> str:
    return f"manifest-{digest[:32]}.json"


def _read_manifest(run: Path, manifest_bytes: int, digest: str) -> Any:
    path = run / _manifest_name(digest)
    try:
        with open(path, "rb", opener=open_regular) as file:
            # One byte more is enough to find a longer file.
            encoded = file.read(manifest_bytes + 1) or b""
    except OSError as error:
        raise StagedCommitError(f"{path}: the list of a decided job's files: {error}") from error
    if len(encoded) != manifest_bytes or hashlib.sha256(encoded).hexdigest() != digest:
        raise StagedCommitError(
            f"{path}: the list of a decided job's files is damaged (it is not the one of "
            f"{manifest_bytes} bytes and the digest that were decided)"
        )
    return loads_json(encoded)


# Offsets of groups.


def prepare_offsets(offsets: OffsetsOfGroups | None, commits: GroupOffsets) -> list[StagedOffsets]:
    """Check the offsets of a job; return one entry for each partition of `__consumer_offsets`.

    Raises what a plain commit raises, and StagedCommitError if there are too many for one job.
    """
    if offsets is None:
        return []
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping of groups, got {type(offsets).__name__}")
    found: dict[int, list[StagedOffset]] = {}
    sizes: dict[int, int] = {}
    topic_ids: dict[str, str] = {}
    for group, given in offsets.items():
        number, keys, values, ids = commits.prepare_commit(group, given)
        if not keys:
            continue
        for where, topic_id in ids.items():
            if topic_ids.setdefault(where.topic, topic_id) != topic_id:
                raise StagedCommitError(f"topic {where.topic!r} was re-created just now")
        found.setdefault(number, []).extend(map(_offset_of_record, keys, values))
        sizes[number] = sizes.get(number, 0) + sum(map(len, keys)) + sum(map(len, values))
    for number, size in sizes.items():
        if size > OFFSETS_BYTES_MAX:
            raise StagedCommitError(
                f"offsets of {size} bytes for partition {number} of the groups: one job commits at "
                f"most {OFFSETS_BYTES_MAX}"
            )
    return [
        StagedOffsets(
            number,
            new_staged_producer_id(),
            {one.topic: topic_ids[one.topic] for one in ones},
            tuple(ones),
        )
        for number, ones in sorted(found.items())
    ]


def _offset_of_record(key: bytes, value: bytes) -> StagedOffset:
    decoded = decode_offset_key(key)
    if decoded is None:
        raise ValueError("the key is not that of an offset")
    committed = decode_offset_value(value)
    return StagedOffset(
        decoded.group,
        decoded.topic_partition.topic,
        decoded.topic_partition.partition,
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.commit_timestamp_ms,
    )
