"""Upgrade of a store that version 0.1.0 wrote, or a later one before there was a `topics.json` of
version 3. The first process that opens the store calls it, before others may open it.

- `topics.json` was a JSON object with a checksum of all entries (version 1). Where there were many
  topics, it named `topics.log` (version 2): lines of entries by name (null: removed), each with a
  tab and a checksum that covers the one before it. A last line that was cut short did not count.
  `upgraded` listed partitions of `__consumer_offsets`.
- LMDB's index of `__transaction_state` lacks what is noted in it now.
- The offsets of a staged job were a batch with a producer id, outside of transactions. Kafka takes
  every batch with a producer id for part of a transaction, and waits for its end: a commit marker
  for the id ends it. The job was decided before the batch was appended.
- The version of an application was an offset of a topic that does not exist: a tombstone removes
  it, and the group stays.

docs/crash-points.md has the steps, U1 to U5, and what a crash leaves. Each can be done again: a
batch that has its marker gets no other.
"""

import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from eoslog.bindings.record_batch import crc32c
from eoslog.common import clock
from eoslog.common.json_text import loads_json
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, VERSION_TOPIC
from eoslog.errors import CorruptRecordError, EoslogError, StoreVersionError
from eoslog.fs.atomic_file import read_if_there
from eoslog.fs.os_errors import named_os_errors
from eoslog.groups.log import GroupLog, GroupPartition, GroupRecord
from eoslog.groups.offsets import commit_staged_offsets, empty_group
from eoslog.storage import topic_registry
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.storage.producer_id_range import is_of_staged_job
from eoslog.storage.topic_registry import TopicDescription, TopicRegistry, parse_entries
from eoslog.storage.topics_file import FILE_NAME, VERSION, Entry, TopicsFile, write_entries
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.state_index import StateIndex

LOG_NAME = "topics.log"
_CHECKSUM_BYTES = 8
_READ_BYTES = 4 << 20

_log = logging.getLogger(__name__)


# The topics, and LMDB's index of `__transaction_state`.


def upgrade_topics(state_path: Path, index: StateIndex) -> None:
    """Have the topics in a file of this version, and no index that an older version wrote.

    Raises CorruptRecordError if the older file is not what was written, StoreVersionError if a
    newer version wrote it, or an error of the write; the older file is in place then.
    """
    file = TopicsFile(state_path)
    try:
        is_current = file.read() is not None
    except StoreVersionError:
        is_current = False
    if not is_current:
        entries = _older_entries(state_path)
        with suppress(StateStoreDamagedError):  # It was re-created, and is empty.
            index.clear()
        if entries is not None:
            write_entries(state_path, entries)
        else:
            _remove(file.path)  # The registry makes it from the directories.
    for name in (LOG_NAME, "upgraded"):
        _remove(state_path / name)


def _remove(path: Path) -> None:
    with named_os_errors(f"removing {path}"):
        path.unlink(missing_ok=True)


def read_topics(state_path: Path) -> dict[str, TopicDescription] | None:
    """Read the topics like `topic_registry.read_topics`, also those that an older version wrote."""
    try:
        return topic_registry.read_topics(state_path)
    except StoreVersionError:
        entries = _older_entries(state_path)
        return None if entries is None else parse_entries(state_path / FILE_NAME, entries)


def _older_entries(state_path: Path) -> dict[str, Entry] | None:
    """Read what an older version wrote; None if a file is lost.

    Raises CorruptRecordError, or StoreVersionError if a newer version wrote the file.
    """
    path = state_path / FILE_NAME
    content = read_if_there(path)
    if content is None:
        return None
    try:
        document = loads_json(content)
        version, entries = document["version"], document["topics"]
        if version == 2 and entries == LOG_NAME:
            return _entries_of_log(state_path / LOG_NAME)
        text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
        if version == 1 and document["crc32c"] == crc32c(text.encode()):
            return dict(entries)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(str(path), 0, f"not a list of topics: {error!r}") from error
    if isinstance(version, int) and version > VERSION:
        raise StoreVersionError(f"{path}: version {version}, known up to {VERSION}")
    raise CorruptRecordError(str(path), 0, f"version {version!r}, or the wrong checksum")


def _entries_of_log(path: Path) -> dict[str, Entry] | None:
    data = read_if_there(path)
    if data is None:
        return None
    entries: dict[str, Entry | None] = {}
    checksum, begin = b"", 0
    while (end := data.find(b"\n", begin)) >= 0:
        line = data[begin:end]
        if not _is_whole(line, checksum):
            break
        try:
            entries |= loads_json(line[: -_CHECKSUM_BYTES - 1])
        except (ValueError, TypeError) as error:
            raise CorruptRecordError(str(path), begin, f"not topics: {error!r}") from error
        checksum, begin = line[-_CHECKSUM_BYTES:], end + 1
    rest = data[begin:]
    # The first line came with the file's name.
    if not begin or (rest and not _is_cut_short(rest, checksum)):
        raise CorruptRecordError(str(path), begin, "a line does not match its checksum")
    return {name: entry for name, entry in entries.items() if entry is not None}


def _is_whole(line: bytes, before: bytes) -> bool:
    """True if a line, without its end, is as it was written."""
    text, checksum = line[: -_CHECKSUM_BYTES - 1], line[-_CHECKSUM_BYTES - 1 :]
    return checksum == b"\t%08x" % crc32c(before + text)


def _is_cut_short(rest: bytes, before: bytes) -> bool:
    """True if an append that a crash cut short may have left these bytes."""
    end = rest.find(b"\n")
    if end < 0:
        return not _is_whole(rest[:-1], before)  # Else its end is damaged.
    return end == len(rest) - 1 and b"\0" in rest


# The offsets of groups.


def upgrade_offsets(log: GroupLog, registry: TopicRegistry) -> None:
    """Upgrade all partitions of `__consumer_offsets`, if it is not known which version created it.

    An error does not keep the store from being opened: it is logged, and the next opening tries
    again.
    """
    topic = registry.get(CONSUMER_OFFSETS_TOPIC)
    if topic is None or topic.created_ms is not None:
        return
    try:
        for number in sorted(log.partitions.existing_offsets_partitions()):
            _upgrade_partition(log, log.of(number))
        registry.add(replace(topic, created_ms=clock.now_ms()))
    except EoslogError as error:
        _log.warning("the offsets of groups are upgraded by the next opening: %s", error)


def _upgrade_partition(log: GroupLog, groups: GroupPartition) -> None:
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


def _without_marker(partition: UnifiedLog) -> list[int]:
    """The producer ids of staged jobs' offsets with no marker after them, in their order."""
    found: dict[int, None] = {}
    offset = partition.log_start_offset
    # None at the end; and before it, where Kafka compacted away what followed.
    while headers := partition.read_headers(offset, _READ_BYTES):
        offset = headers[-1].last_offset + 1
        for header in headers:
            if not is_of_staged_job(partition.topic_partition, header.producer_id):
                continue
            if header.is_control:
                found.pop(header.producer_id, None)
            else:
                found[header.producer_id] = None
    return list(found)
