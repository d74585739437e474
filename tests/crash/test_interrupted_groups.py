"""An interrupt (Ctrl-C) at any line of the replay of groups' offsets, and of keeping them in LMDB:
what was committed stays committed, what is gone stays gone.
"""

from __future__ import annotations

from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from crash.interrupted_lines import interrupted_at
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.offsets_index import GroupOffsetsIndex
from eoslog.groups.records import OffsetValue, encode_offset_key, encode_offset_value
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash

GROUP, OTHER = "g", "gone"
FOO, BAR, OLD = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("foo", 2)
FILES = ("/eoslog/groups/offsets_state.py", "/eoslog/groups/log.py")


def is_of_the_replay(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


class Log:
    """The partition of `__consumer_offsets` that both groups are in, written by somebody else."""

    def __init__(self, store: eoslog.Store) -> None:
        self.offsets: GroupOffsets = parts_of(store).files.group_offsets
        self.partition = parts_of(store).files.partitions.offsets_partition(
            self.offsets.log.partition_of(GROUP)
        )
        self.producer_id = 100

    def write(self, offsets: dict[tuple[str, TopicPartition], int | None], **how: Any) -> None:
        keys = [encode_offset_key(*one) for one in offsets]
        values = [
            None if offset is None else encode_offset_value(OffsetValue(offset))
            for offset in offsets.values()
        ]
        self.partition.append_columns(values, keys, **how)

    def transaction(self, offsets: dict[tuple[str, TopicPartition], int], commit: bool) -> None:
        self.producer_id += 1
        self.write(
            offsets,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=-1,
            transactional=True,
        )
        self.partition.append_marker(self.producer_id, 1, 1, commit)


def said(offsets: GroupOffsets) -> dict[str, dict[TopicPartition, int]]:
    return {
        group: {where: one.offset for where, one in found.items()}
        for group, found in offsets.all().items()
    }


@pytest.mark.parametrize("how", ["look", "keep"])
def test_an_interrupt_at_each_line(tmp_path, how):
    with eoslog.open(tmp_path / "store", create=True, durability="process", config=QUIET) as store:
        store.create_topic("foo", partitions=3)
        interrupt_at_each_line(store, how)


def interrupt_at_each_line(store: eoslog.Store, how: str) -> None:
    log = Log(store)
    offsets, files = log.offsets, parts_of(store).files
    line, at = 0, 0
    while True:
        line, at = line + 1, at + 10
        log.write({(GROUP, OLD): at, (OTHER, FOO): at})
        log.transaction({(GROUP, FOO): at, (GROUP, BAR): at + 1}, commit=True)
        offsets.log.persist_all()
        # From here on nobody has looked.
        log.transaction({(GROUP, FOO): at + 2, (GROUP, BAR): at + 3}, commit=True)
        log.transaction({(GROUP, FOO): 7}, commit=False)
        log.write({(GROUP, OLD): None, (OTHER, FOO): None})
        expected = {GROUP: {FOO: at + 2, BAR: at + 3}}
        interrupt = interrupted_at(line, is_of_the_replay)
        with interrupt as seen, suppress(KeyboardInterrupt):
            if how == "keep":
                offsets.log.persist_all()
            else:
                offsets.all()
        place = seen[line - 1 : line]
        assert said(offsets) == expected, place
        for where in (FOO, BAR, OLD):
            assert offsets.is_stable(GROUP, where), place
        offsets.log.persist_all()
        taken_up = GroupOffsets(
            files.partitions,
            GroupOffsetsIndex(files.lmdb),
            files.config,
            False,
            files.session.shared,
        )
        assert said(taken_up) == expected, place
        if len(seen) < line:
            break
    assert line > 50, "the replay has more lines than that"
