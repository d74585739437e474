"""A partition log that several processes have open, with no store around it; and its page."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from eoslog.bindings.commit_journal import CommitJournal
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.shared_page import SharedPage

CONFIG = {
    "segment.bytes": 20_000,
    "segment.index.bytes": 4096,
    "index.interval.bytes": 500,
    "segment.ms": 1 << 40,
    "max.message.bytes": 10_000,
    "eoslog.fill.bytes": 4096,
    "eoslog.mapped.files": 8192,
    "eoslog.spare.segments": 0,
}
# Where the fields stand in the control page.
FIELDS = {
    "sequence": (36, "<I"),
    "log_end_offset": (48, "<q"),
    "active_base_offset": (56, "<q"),
    "active_valid_bytes": (64, "<q"),
    "active_reserved_bytes": (72, "<q"),
    "sync_round": (232, "<I"),
    "sync_holder": (236, "<i"),
}


class SharedLog:
    """The files of one session; `open` as often, and in as many processes, as one likes."""

    def __init__(self, root: Path, session: bytes | None = None) -> None:
        self.root = root
        self.directory = root / "t-0"
        self.control = root / "control"
        if session is None:
            self.directory.mkdir(parents=True)
            session = os.urandom(16)
            SharedPage(str(root / "shared"), session, True)
        self.session = session

    def open(
        self,
        page: SharedPage | None = None,
        journal: CommitJournal | None = None,
        *,
        clean: bool = True,
    ) -> PartitionLog:
        log = PartitionLog(
            str(self.directory),
            topic="t",
            partition=0,
            control_path=str(self.control),
            spare_path=str(self.root / "spare"),
            cut_path=str(self.root / "cut"),
            config=CONFIG,
            clean=clean,
            session=self.session,
            shared=page or self.page(),
            journal=journal,
        )
        log.restore_producers(None, 0)
        return log

    def follow(self) -> PartitionLog:
        """Open it for reading alone; what is written by the others is looked at, and not a byte of
        theirs is changed. Its producers are to be restored.
        """
        return PartitionLog(
            str(self.directory),
            topic="t",
            partition=0,
            control_path=str(self.control),
            spare_path=str(self.root / "no spare"),
            cut_path=str(self.root / "no cut"),
            config=CONFIG,
            clean=True,
            followed=self.session,
        )

    def next_session(self) -> SharedLog:
        """The same files in another session, after the death of all that had them open."""
        (self.root / "shared").unlink()
        session = os.urandom(16)
        SharedPage(str(self.root / "shared"), session, True)
        return SharedLog(self.root, session)

    def page(self) -> SharedPage:
        return SharedPage(str(self.root / "shared"), self.session, False)

    def path(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020d}.log"

    def field(self, name: str) -> int:
        place, layout = FIELDS[name]
        return int(struct.unpack_from(layout, self.control.read_bytes(), place)[0])

    def set_fields(self, **values: int) -> None:
        """Write to the page as a writer does that is interrupted."""
        with self.control.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
            for name, value in values.items():
                place, layout = FIELDS[name]
                struct.pack_into(layout, page, place, value)

    def leave_odd(self) -> None:
        """As after the death of a writer: whoever has the lock next is to repair."""
        self.set_fields(sequence=self.field("sequence") | 1)
