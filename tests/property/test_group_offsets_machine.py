"""Commits, transactions, deletions and expiry in any order: groups stand where a plain model says.

The model keeps the log as a list and reads it from the beginning for each question, so that it has
no state to get wrong. The engine is asked three times: as it grew, replayed from its log, and taken
up from what it had written to LMDB last.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.errors import GroupIdNotFoundError, UnstableOffsetCommitError
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.offsets_index import GroupOffsetsIndex
from eoslog.groups.records import decode_offset_key, decode_offset_value
from eoslog.store.store import parts_of

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
SETTINGS = QUIET | {"offsets.retention.minutes": 7 * 24 * 60}
NUMBER = 7  # All groups share this partition of `__consumer_offsets`.
LATER_MS = 8 * 86_400_000

producer_ids = st.sampled_from((0, 5, 2**62))
places = st.sampled_from(PARTITIONS)
offsets = st.dictionaries(places, st.integers(0, 2**63 - 1), min_size=1)


class Entry(NamedTuple):
    """A record of the log, or a marker: then `committed` says which."""

    producer_id: int
    group: str = ""
    where: TopicPartition = PARTITIONS[0]
    offset: int | None = None
    committed: bool | None = None


class NothingKept:
    """LMDB of a store that never wrote to it."""

    generation = 0

    def read(self, partition: int) -> None:
        return None


def names_of_partition(count: int) -> list[str]:
    from eoslog.transactions.state_key import state_partition_of

    names = (f"group-{number}" for number in range(10_000))
    return [name for name in names if state_partition_of(name) == NUMBER][:count]


GROUPS = names_of_partition(3)
groups = st.sampled_from(GROUPS)


def expected(log: list[Entry], group: str, where: TopicPartition) -> tuple[int | None, bool]:
    """The committed offset, and whether it is stable."""
    newest_tombstone = max(
        (at for at, one in enumerate(log) if one[1:4] == (group, where, None)), default=-1
    )
    candidates = []
    stable = True
    for at, one in enumerate(log):
        if at < newest_tombstone or (one.group, one.where) != (group, where) or one.offset is None:
            continue
        ends = [end for end in log[at:] if end.producer_id == one.producer_id and not end.group]
        if one.producer_id == -1:
            candidates.append((at, one.offset))
        elif not ends:
            stable = False
        elif ends[0].committed:
            candidates.append((at, one.offset))
    return max(candidates, default=(-1, None))[1], stable


class GroupOffsetsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="groups-"))
        self.epochs: dict[int, int] = {}
        self.log: list[Entry] = []
        self.compacted = False

    @initialize()
    def begin(self) -> None:
        self.store = eoslog.open(
            self.root / "store", create=True, durability="process", config=SETTINGS
        )
        self.store.create_topic("t", partitions=len(PARTITIONS))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.root)

    @property
    def engine(self) -> GroupOffsets:
        return parts_of(self.store).files.group_offsets

    @rule(group=groups, offsets=offsets)
    def commit(self, group, offsets):
        self.engine.commit(group, offsets)
        self.log += [Entry(-1, group, where, offset) for where, offset in offsets.items()]

    @rule(producer_id=producer_ids, group=groups, offsets=offsets)
    def commit_in_a_transaction(self, producer_id, group, offsets):
        number, keys, values, _ = self.engine.prepare_commit(group, offsets)
        parts_of(self.store).files.partitions.offsets_partition(number).append_columns(
            values,
            keys,
            producer_id=producer_id,
            producer_epoch=self.epochs.setdefault(producer_id, 0),
            base_sequence=-1,
            transactional=True,
        )
        self.log += [Entry(producer_id, group, where, offset) for where, offset in offsets.items()]

    @rule(producer_id=producer_ids, committed=st.booleans())
    def end_a_transaction(self, producer_id, committed):
        self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
        partition = parts_of(self.store).files.partitions.offsets_partition(NUMBER)
        partition.append_marker(producer_id, self.epochs[producer_id], 1, committed)
        self.log.append(Entry(producer_id, committed=committed))

    @rule(group=groups)
    def delete(self, group):
        found = {where for where in PARTITIONS if expected(self.log, group, where) != (None, True)}
        if not found:
            with pytest.raises(GroupIdNotFoundError):
                self.engine.delete(group)
            return
        self.engine.delete(group)
        self.log += [Entry(-1, group, where) for where in found]

    @rule()
    def expire(self):
        """Nothing is pending anywhere: then all is so old that it goes; else what is stable."""
        now_ms = 2**41 + LATER_MS
        gone = [
            (group, where)
            for group in GROUPS
            for where in PARTITIONS
            for offset, stable in [expected(self.log, group, where)]
            if stable and offset is not None
        ]
        assert self.engine.expire(now_ms) == len(gone)
        self.log += [Entry(-1, group, where) for group, where in gone]

    @rule()
    def persist(self):
        self.engine.log.persist_all()

    @rule()
    def reopen_cleanly(self):
        """Transactions that nobody owns are ended first: a store aborts them when it is opened."""
        for producer_id in self.epochs:
            self.end_a_transaction(producer_id, False)
        self.store.close()
        self.store = eoslog.open(self.root / "store", durability="process", config=SETTINGS)
        partitions = parts_of(self.store).files.partitions
        if NUMBER in partitions.existing_offsets_partitions():
            # The close compacts what is due, if its thread had seen the partition.
            self.compacted |= partitions.offsets_partition(NUMBER).log_start_offset > 0

    @rule(rolled=st.booleans())
    def compact(self, rolled):
        """What is committed is written again; with an open transaction nothing happens."""
        partition = parts_of(self.store).files.partitions.offsets_partition(NUMBER)
        if rolled:
            partition.roll()
        size_before = partition.log_end_offset - partition.log_start_offset
        deleted = parts_of(self.store).files.compact(partition)
        if deleted:
            self.compacted = True
            live = len(GROUPS) * len(PARTITIONS)
            assert partition.log_end_offset - partition.log_start_offset <= size_before + live

    @rule()
    def lose_lmdb(self):
        lmdb = parts_of(self.store).files.lmdb
        with lmdb._lock:  # The background thread may be reading.
            lmdb.begin_anew()

    @invariant()
    def all_views_agree_with_the_model(self):
        if not hasattr(self, "store"):
            return
        files = parts_of(self.store).files
        kept = GroupOffsetsIndex(files.lmdb)
        views = [
            self.engine,
            GroupOffsets(
                files.partitions, NothingKept(), files.config, False, files.session.shared
            ),
            GroupOffsets(files.partitions, kept, files.config, False, files.session.shared),
        ]
        for group in GROUPS:
            for where in PARTITIONS:
                wanted, stable = expected(self.log, group, where)
                for view in views:
                    found = view.fetch(group, where)
                    assert (None if found is None else found.offset) == wanted
                    try:
                        view.fetch(group, where, require_stable=True)
                    except UnstableOffsetCommitError:
                        assert not stable
                    else:
                        assert stable

    @rule()
    def the_log_holds_what_was_committed(self):
        if self.compacted:
            return
        if NUMBER not in parts_of(self.store).files.partitions.existing_offsets_partitions():
            assert self.log == []
            return
        partition = parts_of(self.store).files.partitions.offsets_partition(NUMBER)
        records, at = [], 0
        while at < partition.log_end_offset:
            more, at = partition.fetch_records(at, 1000, 1 << 22)
            records += more
        found = []
        for record in records:
            key = decode_offset_key(record.key)
            if key is not None:  # Else it is the end of a group without offsets.
                value = record.value and decode_offset_value(record.value).offset
                found.append((*key, value))
        assert sorted(found, key=str) == sorted(
            ((one.group, one.where, one.offset) for one in self.log if one.group), key=str
        )


TestGroupOffsetsMachine = pytest.mark.long(GroupOffsetsMachine.TestCase)
