"""docs/architecture.md names every file that an opened store makes, and no other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commit_journals import SMALL, with_journal
from staged_jobs import stage

import eoslog
from eoslog.errors import StagedJobIncompleteError, StoreFullError
from eoslog.staging import job as staged_job
from eoslog.storage import opened_partitions
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import abandon, engine_of, parts_of

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")


def described() -> dict[str, re.Pattern[str]]:
    """The page's names, each as what paths below the store look like."""
    text = PAGE.read_text()
    begin = text.index("## What is where on disk\n")
    found = {}
    for row in ROW.findall(text[begin : text.index("\n## ", begin)]):
        directory = ""
        for name in NAME.findall(row):
            path = name if "/" in name else directory + name
            directory = path[: path.rfind("/") + 1]
            pattern = re.escape(path).replace(r"\*", "[^/]*")
            pattern = re.sub("<[^>]+>", "[^/]+", pattern)
            found[path] = re.compile(pattern + (".+" if path.endswith("/") else ""))
    return found


def files_of(path: Path) -> Iterator[str]:
    """Every file; the store may be making and removing some meanwhile."""
    for directory, _, names in os.walk(path):
        for name in names:
            yield str((Path(directory) / name).relative_to(path))


def fill(store: eoslog.Store) -> None:
    """Something of everything; a job that is decided, and cannot be completed."""
    store.create_topic("orders", partitions=3, config={"segment.bytes": 4096})
    store.create_topics({f"more-{number}": 1 for number in range(30)})
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            for _ in range(10):
                producer.append("orders", partition=0, values=[b"x" * 1000])
            producer.commit_transaction() if commit else producer.abort_transaction()
    partition = engine_of(store).partition("orders", 0)
    partition.prepare_spare()
    partition.flush()
    partition.producer_state.persist()
    partition.producer_state.save_copies()
    segment = partition.path / f"{0:020d}.log"
    with segment.open("rb"):
        partition.delete_segments(partition.log_end_offset)
    with store.producer(name="named") as named:
        named.append("orders", partition=1, values=[b"v"])


def leave_a_job(store: eoslog.Store) -> None:
    def full(partition: UnifiedLog, staged: memoryview, producer_id: int) -> None:
        raise StoreFullError("no room")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
        patched.setattr(UnifiedLog, "adopt", full)
        with pytest.raises(StagedJobIncompleteError):
            store.commit_staged("app", 0, [stage(store.path, "run", "0", range(30))])


def test_the_page_names_every_file(store_path, open_store, monkeypatch):
    """Of a store that is open, was closed, died, was closed unrecovered, or met damage."""
    made: set[str] = set()
    store = open_store()
    fill(store)
    made.update(files_of(store_path))
    store.close()
    made.update(files_of(store_path))

    store = open_store()
    with store.consumer("group") as consumer:
        consumer.subscribe(["orders"])
        consumer.poll(timeout=0)
        parts_of(store).checkpointer.peers.leads()
        parts_of(store).files.transaction_recovery.unresolved_file.note_renewal()
        parts_of(store).files.lmdb._unusable(OSError("unreadable"))
        leave_a_job(store)
        made.update(files_of(store_path))
    end = engine_of(store).partition("orders", 1).path / f"{0:020d}.log"
    engine_of(store).partition("orders", 1).append_columns([b"torn"])
    abandon(store)
    content = end.read_bytes().rstrip(b"\0")
    end.write_bytes(content[:-1] + b"?")

    store = with_journal(open_store("commit", **SMALL))
    store.partition("orders", 1)
    made.update(files_of(store_path))
    monkeypatch.setattr(opened_partitions, "RECOVERY_AT_CLOSE_S", 0)
    store.close()
    made.update(files_of(store_path))

    names = described()
    assert sorted(one for one in made if not any(p.fullmatch(one) for p in names.values())) == []
    unmade = {name for name, p in names.items() if not any(p.fullmatch(one) for one in made)}
    assert unmade == set()
