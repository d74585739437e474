"""Offsets of groups that a staged job commits, and how far its application is.

The record that decides a job holds the offsets, so nothing of them is in `__consumer_offsets`
before, and the process that completes the job has all it needs. What goes into one partition is a
transaction of one batch, with a producer id of its own and a commit marker: a partition that knows
the id has the batch, so that no offset is written a second time, over a newer one.

The version of an application is shown as an offset of the group with the application's name, at a
partition that no topic has. It is in the application's record only: Kafka's tools cannot describe
a group that has an offset of a topic that does not exist.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from eoslog.common.json_text import check_kinds
from eoslog.common.topic_name import VERSION_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StagedCommitError
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.groups.group_offsets import OffsetCommit, TopicIds
from eoslog.groups.offset_records import (
    OffsetKey,
    OffsetValue,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.staging.staged_message import new_staged_producer_id

# Where a group with an application's name shows the application's newest version.
VERSION_PARTITION = TopicPartition(VERSION_TOPIC, 0)
# Keys and values of one partition; they make one batch, far below what an internal topic takes.
OFFSETS_BYTES_MAX = 16 << 20

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
OffsetsOfGroups = Mapping[str | ConsumerGroupMetadata, Offsets]
TopicIdsOfGroups = Mapping[str | ConsumerGroupMetadata, TopicIds]
FindTopicId = Callable[[TopicPartition], str | None]


class OffsetCommits(Protocol):
    """Part of the groups' offsets that a staged job needs."""

    def prepare_staged_commit(
        self,
        group: str | ConsumerGroupMetadata,
        offsets: Offsets,
        sent_for: TopicIds | None = None,
    ) -> OffsetCommit:
        """Check a commit, or what is left of one that was checked for topics of these ids."""

    def adopt(
        self,
        number: int,
        columns: Callable[[], tuple[list[bytes], list[bytes]]],
        producer_id: int,
    ) -> None:
        """Append records unless the partition knows the producer id, and commit them."""


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


def prepare_offsets(
    offsets: OffsetsOfGroups | None,
    commits: OffsetCommits,
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
        number, keys, values, ids = commits.prepare_staged_commit(
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
    prepared: Sequence[StagedOffsets], commits: OffsetCommits, find_topic_id: FindTopicId
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
