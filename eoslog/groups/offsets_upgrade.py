"""Upgrade of what version 0.1.0 left in `__consumer_offsets` to the form that Kafka's coordinator
loads.

- The offsets of a staged job were a batch with a producer id, outside of transactions. Kafka takes
  every batch with a producer id for part of a transaction, and waits for its end: a commit marker
  for the id ends it. The job was decided before the batch was appended.
- The version of an application was an offset of a topic that does not exist: a tombstone removes
  it, and the group stays.

Each partition is read once, when the store is opened; a file lists those that were. If the file is
lost, or a crash comes before it, all is done again: a batch that has its marker gets no other.
"""

import logging
from collections.abc import Collection
from pathlib import Path

from eoslog.bindings.record_batch import iter_batches
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, VERSION_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError
from eoslog.fs.atomic_file import read_if_there, write_atomically
from eoslog.groups.group_log import GroupLog, GroupPartition, GroupRecord
from eoslog.groups.group_offsets import commit_staged_offsets, empty_group
from eoslog.storage.partition import Partition
from eoslog.storage.producer_id_range import is_of_staged_job

_READ_BYTES = 4 << 20

_log = logging.getLogger(__name__)


def upgrade_offsets(log: GroupLog, done: Path, unrecovered: Collection[TopicPartition]) -> None:
    """Upgrade all partitions that the file `done` does not list.

    The first process that opens the store calls it, before others may open it. If the store has the
    file, partitions in `unrecovered` wait for a later opening: they are opened when they are used.
    An error does not keep the store from being opened: it is logged, and the next opening tries
    again.
    """
    try:
        content = read_if_there(done)
        known = {int(number) for number in (content or b"").split() if number.isdigit()}
        found = set(log.partitions.existing_offsets_partitions()) - known
        if content is not None:
            found -= {
                where.partition for where in unrecovered if where.topic == CONSUMER_OFFSETS_TOPIC
            }
            if not found:
                return
        for number in sorted(found):
            _upgrade(log, log.of(number))
        # Not synced: what a power cut takes is done again.
        write_atomically(done, " ".join(map(str, sorted(known | found))).encode(), sync=False)
    except EoslogError as error:
        _log.warning("the offsets of groups are upgraded by the next opening: %s", error)


def _upgrade(log: GroupLog, groups: GroupPartition) -> None:
    partition = groups.partition
    with log.writing(groups):
        for producer_id in _without_marker(partition):
            commit_staged_offsets(partition, producer_id)
        with log.caught_up(groups) as state:
            versions = list(state.keys_of_topic(VERSION_TOPIC))
            missing = [key.group for key in versions if state.members(key.group) is None]
        if versions:
            gone = [GroupRecord(key, None) for key in versions]
            log.append(groups, [*map(empty_group, missing), *gone])
    # Whatever the durability: the partition is not read again.
    partition.sync_up_to(partition.log_end_offset)


def _without_marker(partition: Partition) -> list[int]:
    """The producer ids of staged jobs' offsets with no marker after them, in their order."""
    found: dict[int, None] = {}
    offset, end = partition.log_start_offset, partition.visible_end
    while offset < end:
        for header in iter_batches(memoryview(partition.read(offset, _READ_BYTES))):
            offset = header.last_offset + 1
            if not is_of_staged_job(partition.topic_partition, header.producer_id):
                continue
            if header.is_control:
                found.pop(header.producer_id, None)
            else:
                found[header.producer_id] = None
    return list(found)
