"""A job that is decided, or about to be: its files, its partitions and bounds, its offsets.

The state log's record holds it as JSON: the partitions' bounds always, so that readers can be kept
out whatever happened to the rest; the list of files and offsets too, unless it is long. Then it is
in a file of its own, beside the staged ones, and the record holds that file's size and digest.

The record that decides a job holds the offsets of groups that it commits, so nothing of them is in
`__consumer_offsets` before, and the process that completes the job has all it needs. What goes into
one partition is a transaction of one batch, with a producer id of its own and a commit marker: a
partition that knows the id has the batch, so that no offset is written a second time, over a newer
one.
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
from eoslog.common.topic_name import VERSION_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StagedCommitError
from eoslog.fs.atomic_file import write_atomically
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.groups.group_offsets import GroupOffsets, TopicIds
from eoslog.groups.group_records import (
    OffsetKey,
    OffsetValue,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.staging.staged_message import StagedFile, StagedMessage, new_staged_producer_id
from eoslog.staging.staged_names import attempt_path, is_directory_name

# The internal log keeps every decision: longer lists would make up most of it.
INLINE_MANIFEST_BYTES_MAX = 16 << 10
# A file of so many bytes becomes a segment of its partition, where it can. Smaller ones are copied:
# each segment is four files more to list, to open and to delete.
WHOLE_FILE_BYTES_MIN = 4 << 20
# Of a job of less than that a thread costs more than it saves.
BYTES_FOR_THREADS = 4 << 20
# Of more than half a million partitions; far below what a record of the internal log may hold.
BOUNDS_BYTES_MAX = 16 << 20
# Where a group with an application's name shows the application's newest version. It is in the
# application's record only: Kafka's tools cannot describe a group that has an offset of a topic
# that does not exist.
VERSION_PARTITION = TopicPartition(VERSION_TOPIC, 0)
# Keys and values of one partition; they make one batch, far below what an internal topic takes.
OFFSETS_BYTES_MAX = 16 << 20

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
OffsetsOfGroups = Mapping[str | ConsumerGroupMetadata, Offsets]
TopicIdsOfGroups = Mapping[str | ConsumerGroupMetadata, TopicIds]
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

    `topic_ids` tells a topic from another that was made under its name later.
    """

    number: int
    producer_id: int
    topic_ids: Mapping[str, str]
    offsets: tuple[StagedOffset, ...]

    def as_row(self) -> list[Any]:
        """Return all of it, as the record of the decision holds it."""
        return [self.number, self.producer_id, dict(self.topic_ids), list(self.offsets)]

    @classmethod
    def of_row(cls, row: list[Any]) -> "StagedOffsets":
        """Restore from what `as_row` gave, read back from the record."""
        number, producer_id, topic_ids, offsets = row
        found = tuple(StagedOffset(*fields) for fields in offsets)
        check_kinds(int, number, producer_id)
        for one in found:
            check_kinds(str, one.group, one.topic, one.metadata, topic_ids[one.topic])
            check_kinds(int, one.partition, one.offset, one.leader_epoch, one.commit_timestamp_ms)
        return cls(number, producer_id, topic_ids, found)

    @property
    def offset_keys(self) -> frozenset[OffsetKey]:
        """Keys of these offsets: their groups and partitions."""
        return frozenset(
            OffsetKey(one.group, TopicPartition(one.topic, one.partition)) for one in self.offsets
        )

    def columns(self, find_topic_id: FindTopicId) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of the records, without those of topics that are gone."""
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
    """One file of a job, and where it is."""

    path: Path
    file: StagedFile

    @property
    def is_large(self) -> bool:
        """True if the file is to become a segment, without a copy, if that can be."""
        return self.file.bytes >= WHOLE_FILE_BYTES_MIN


@dataclass(frozen=True, slots=True)
class StagedJob:
    """Job that one decision makes part of the log.

    `bounds` holds, for each partition, the offset from which on readers see nothing until the job
    is whole; `topic_ids` tells a topic from another that was made under its name later.
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
        """The producer ids that each partition gets to know."""
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
        """The groups and partitions that the job commits offsets of."""
        return frozenset(key for one in self.offsets for key in one.offset_keys)

    def described(self, sync: bool) -> Mapping[str, Any]:
        """The job as its record holds it. A long list of files is written to its own file, durably.

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
        write_atomically(self.run_path / _manifest_name(digest), encoded, sync=sync)
        return {"topics": topics, "manifest_bytes": len(encoded), "manifest_sha256": digest}

    def _manifest(self) -> list[Any] | dict[str, Any]:
        """The files by attempt; of a job with offsets, these beside them."""
        attempts: dict[str, list[Any]] = {}
        for one in self.files:
            attempts.setdefault(one.path.parent.name, []).append(one.file.as_row())
        files = list(attempts.items())
        if not self.offsets:
            return files
        return {"files": files, "offsets": [one.as_row() for one in self.offsets]}


def files_of_messages(staging_path: Path, messages: Iterable[StagedMessage]) -> list[JobFile]:
    """The files that messages name, in their order."""
    found = []
    for message in messages:
        directory = attempt_path(staging_path, message.app_id, message.run_id, message.attempt)
        found += [JobFile(directory / file.name, file) for file in message.files]
    return found


def threads_for(files: Sequence[JobFile], parts: int) -> int:
    """Return how many threads are worth their while for files of so many parts."""
    if sum(one.file.bytes for one in files) < BYTES_FOR_THREADS:
        return 1
    return min(parts, os.cpu_count() or 1)


def bounds_of_record(described: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The bounds alone; they are in the record itself. Raises CorruptRecordError."""
    with fields_read_of("a decided job"):
        bounds = {
            TopicPartition(topic, int(partition)): bound
            for topic, entry in described["topics"].items()
            for partition, bound in entry["bounds"].items()
        }
        check_kinds(int, *bounds.values())
        return bounds


def topic_ids_of_record(described: Mapping[str, Any]) -> dict[str, str]:
    """The ids of its topics. Raises CorruptRecordError."""
    with fields_read_of("a decided job"):
        found = {topic: entry["topic_id"] for topic, entry in described["topics"].items()}
        check_kinds(str, *found.values())
        return found


def is_listed_apart(described: Mapping[str, Any]) -> bool:
    """True if the job's files are listed in a file beside them, and not in its record."""
    return "manifest" not in described


def job_of_record(app_id: str, version: int, run: Path, described: Mapping[str, Any]) -> StagedJob:
    """The job that a record describes.

    Raises StagedCommitError if its list of files is missing or damaged, CorruptRecordError if the
    record, or the list in it, is not as it was written.
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
    """A file of a job, which is nowhere but in the directory of its attempt, below the run's."""
    if not is_directory_name(attempt):
        raise ValueError(f"{attempt!r:.80} is not the name of an attempt's directory")
    return JobFile(run / attempt / file.name, file)


def _manifest_name(digest: str) -> str:
    return f"manifest-{digest[:32]}.json"


def _read_manifest(run: Path, manifest_bytes: int, digest: str) -> Any:
    path = run / _manifest_name(digest)
    try:
        with open(path, "rb", opener=open_regular) as file:
            # Were it endless, more than one byte too many is not read.
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


def prepare_offsets(
    offsets: OffsetsOfGroups | None,
    commits: GroupOffsets,
    sent_for: TopicIdsOfGroups | None = None,
) -> list[StagedOffsets]:
    """Check what a job is to commit; one entry for each partition of `__consumer_offsets`.

    `sent_for` has the topics' ids of offsets that were sent before: those of topics that were
    deleted since are left out. Raises what a plain commit raises, and StagedCommitError if it is
    too much for one job.
    """
    if offsets is None:
        return []
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets: a mapping of groups, not {type(offsets).__name__}")
    found: dict[int, list[StagedOffset]] = {}
    sizes: dict[int, int] = {}
    topic_ids: dict[str, str] = {}
    for group, given in offsets.items():
        number, keys, values, ids = commits.prepare_commit(
            group, given, None if sent_for is None else sent_for[group]
        )
        if not keys:
            continue
        for where, topic_id in ids.items():
            if topic_ids.setdefault(where.topic, topic_id) != topic_id:
                raise StagedCommitError(f"topic {where.topic!r} was made anew just now")
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


def adopt_offsets(
    prepared: Sequence[StagedOffsets], commits: GroupOffsets, find_topic_id: FindTopicId
) -> None:
    """Append what the partitions do not hold yet; not synced."""
    for one in prepared:
        commits.adopt(one.number, partial(one.columns, find_topic_id), one.producer_id)


def _offset_of_record(key: bytes, value: bytes) -> StagedOffset:
    decoded = decode_offset_key(key)
    if decoded is None:
        raise ValueError("a key that is not of an offset")
    said = decode_offset_value(value)
    return StagedOffset(
        decoded.group,
        decoded.topic_partition.topic,
        decoded.topic_partition.partition,
        said.offset,
        said.leader_epoch,
        said.metadata,
        said.commit_timestamp_ms,
    )
