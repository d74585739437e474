"""Who may do what with the files of a store, and a use of one that makes files of every kind."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from commit_journals import SMALL
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.staging.message import StagedMessage
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import engine_of, parts_of

READABLE = {"eoslog.group.readable": True}
PRIVATE_MODES = {True: 0o700, False: 0o600}
# The group of a directory passes to what is made in it.
GROUP_MODES = {True: 0o2750, False: 0o640}
SEGMENT_BYTES = 8 << 20
# Larger ones become segments.
STAGED_BYTES = 5 << 20
# One that is freed leaves its group.
members: list[eoslog.Consumer] = []


def wrong_modes(path: Path, *, readable: bool) -> dict[str, str]:
    """The files and directories from `path` on whose modes are not those of a store; those of one
    that its group may read have the group of `path`.
    """
    wanted = GROUP_MODES if readable else PRIVATE_MODES
    group = path.stat().st_gid
    found = {}
    for folder, _, files in os.walk(path):
        for one in (Path(folder), *(Path(folder, name) for name in files)):
            with suppress(FileNotFoundError):  # The store's thread has removed it just now.
                state = one.lstat()
                mode = stat.S_IMODE(state.st_mode)
                of_group = not readable or state.st_gid == group
                if mode != wanted[stat.S_ISDIR(state.st_mode)] or not of_group:
                    found[str(one.relative_to(path))] = f"{mode:o}, group {state.st_gid}"
    return found


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def stage(store_path: Path, run_id: str, value_bytes: int) -> StagedMessage:
    writer = StagedWriter(store_path, "app", run_id, "0", partitions={"t": 2})
    for _ in range(value_bytes // 500_000 + 1):
        writer.append("t", 1, [bytes(min(value_bytes, 500_000))])
    return writer.close()


def use_everything(path: Path, config: Mapping[str, object]) -> eoslog.Store:
    """Make a store with files of every kind; it is open."""
    store = eoslog.open(path, create=True, config=QUIET | SMALL | dict(config))
    store.create_topic("t", 2, config={"segment.bytes": SEGMENT_BYTES})
    store.create_topic("small", config={"segment.bytes": 4096, "segment.index.bytes": 240})
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for number in range(40):
            producer.begin_transaction()
            producer.append("small", 0, [bytes(900)])
            group = store.consumer("g").group_metadata()
            producer.send_offsets_to_transaction({TopicPartition("t", 0): number}, group)
            producer.commit_transaction() if number % 3 else producer.abort_transaction()
    store.producer("name").append("t", 0, [b"plain"])
    members.append(store.consumer("members"))
    members[-1].subscribe(["t"])
    members[-1].poll(timeout=0.0)
    for version, value_bytes in enumerate((100, STAGED_BYTES)):
        store.commit_staged("app", version, [stage(path, f"run-{version}", value_bytes)])
    stage(path, "undecided", 100)
    log = engine_of(store).partition("small", 0)
    log.prepare_spare()
    store.delete_records({TopicPartition("small", 0): log.log_end_offset})
    store.producer().append("small", 0, [bytes(900)] * 8)
    state = parts_of(store).files.state_log.partition_of("x")
    state.roll()
    parts_of(store).files.compact(state)
    parts_of(store).checkpointer.write_checkpoints()
    store.create_topic("gone")
    store.delete_topic("gone")
    store.producer().append("small", 0, [b"lost"])
    return store
