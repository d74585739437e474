"""Process slots: the processes that have a store open, dead or alive; a locked file for each.

A process id is no proof of life: ids are used again, and containers do not see each other's. So
every process that opens a store holds a file lock on a slot of its own, below `state/processes/`,
for as long as it lives and has the store open. A slot whose lock is free belongs to a process that
is gone; another process then ends what it left. The first line of the file is for people. Each line
after it is a block of producer ids that the process gives out, written before the first of them is:
while the process lives, the others do not let these ids expire.

A slot is made under another name and takes its own once it is locked: no slot of a living process
is ever seen unlocked. A process that closes the store leaves the file with a free lock, so that
what it could not finish is ended as that of a dead one.
"""

import errno
import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common import clock
from eoslog.common.json_text import loads_json
from eoslog.errors import CorruptRecordError, EoslogError, StoreFullError
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, read_if_there
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories
from eoslog.session.lock import moment_text

DIRECTORY_NAME = "processes"
SLOT_BYTES = 16
# Of processes that came and went; after so many all are forgotten.
_DESCRIPTIONS_MAX = 1024


class ProcessSlot(NamedTuple):
    """One process that has, or had, the store open; `slot` is the id of its slot.

    What of the rest is not known is 0 or "".
    """

    slot: bytes
    process_id: int
    host: str
    opened_ms: int
    session: bytes

    def __str__(self) -> str:
        if not self.process_id:
            return f"a process that is gone (slot {self.slot.hex()})"
        return (
            f"process {self.process_id} on {self.host}, which opened the store at "
            f"{moment_text(self.opened_ms)}"
        )


def any_alive(state_path: Path) -> bool:
    """Return True if a process lives that has the store open; nothing is written for that.

    A process has its slot before it writes anything else to the store, and until it has written
    everything.
    """
    directory = state_path / DIRECTORY_NAME
    with named_os_errors(f"looking at {directory}"):
        try:
            paths = [path for path in directory.iterdir() if path.suffix != TEMPORARY_SUFFIX]
        except FileNotFoundError:
            return False
    return any(map(_is_held, paths))


def _is_held(path: Path) -> bool:
    try:
        file = FileDescriptor(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return True  # Not known; it is asked again.
        with named_os_errors(f"looking at {path}"):
            raise
    with file as descriptor:
        try:
            # Shared: two who look at once do not take each other for the owner.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class ProcessSlots:
    """This process's slot in a session, and a look at all others. All calls may come from any
    thread.
    """

    def __init__(self, state_path: Path, session: bytes) -> None:
        """Take a slot of its own; `release` or the death of the process frees it."""
        self.path = state_path / DIRECTORY_NAME
        self._followed: Path | None = None
        self.own = os.urandom(SLOT_BYTES)
        self.session = session
        self._descriptions: dict[bytes, ProcessSlot] = {}
        self._opened_ms = clock.now_ms()
        self._unwritten = b""  # Lines that the file lacks.
        path = self._path_of(self.own)
        unlocked = path.with_name(path.name + TEMPORARY_SUFFIX)
        with named_os_errors(f"making {path}"):
            make_directories(self.path)
            self._file = file = UnforkedFile(
                unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE
            )
            try:
                file.lock(exclusive=True, wait=True)
                self._end_bytes = os.write(file.fileno(), self._text().encode() + b"\n")
                unlocked.rename(path)
            except BaseException:
                file.close()
                unlocked.unlink(missing_ok=True)
                raise

    def _text(self) -> str:
        return json.dumps(
            {
                "pid": os.getpid(),
                "host": os.uname().nodename,
                "opened_ms": self._opened_ms,
                "session": self.session.hex(),
            }
        )

    def follow(self, state_path: Path) -> None:
        """Go by the slots of a store that this process only reads; its own is elsewhere."""
        self._followed = state_path / DIRECTORY_NAME

    def alive(self, slot: bytes) -> bool:
        """True if the process that took the slot lives, and has the store open."""
        if slot == self.own:
            return self._lives()
        return _is_held(self._known_path(slot))

    def dead(self) -> list[ProcessSlot]:
        """Return the slots of dead processes whose leftovers no process has ended yet."""
        return [one for one in self._all() if not self.alive(one.slot)]

    def others(self) -> list[ProcessSlot]:
        """The other processes that have the store open now."""
        return [one for one in self._all() if one.slot != self.own and self.alive(one.slot)]

    def note_producer_ids(self, block: range) -> None:
        """Note a block of producer ids before this process gives one of them out.

        On a full disk the next call notes it too.
        """
        self._unwritten += b"%d %d\n" % (block.start, block.stop)
        with suppress(StoreFullError), named_os_errors(f"writing {self._path_of(self.own)}"):
            while self._unwritten:
                written = os.pwrite(self._file.fileno(), self._unwritten, self._end_bytes)
                self._end_bytes += written
                self._unwritten = self._unwritten[written:]

    def producer_ids_of_others(self) -> list[range]:
        """Return the blocks of producer ids of the other processes that live, in order.

        Raises CorruptRecordError if a slot has something else: which ids may expire is unknown.
        """
        blocks = []
        for one in self.others():
            path = self._known_path(one.slot)
            # Of the block after the last line's end no id is given out yet.
            for line in (read_if_there(path) or b"").split(b"\n")[1:-1]:
                try:
                    first, upper_bound = map(int, line.split())
                except ValueError as error:
                    reason = f"{line!r:.80} is no block of producer ids"
                    raise CorruptRecordError(str(path), 0, reason) from error
                blocks.append(range(first, upper_bound))
        return sorted(blocks, key=lambda block: block.start)

    def settle(self, slot: bytes) -> None:
        """Forget the slot of a dead process: nothing that it left is still to be done."""
        if slot == self.own and self._lives():
            raise ValueError("the slot is that of this process, which lives")
        with named_os_errors(f"removing {self._path_of(slot)}"):
            self._path_of(slot).unlink(missing_ok=True)

    def settle_older(self) -> None:
        """Forget all other slots; for the first process of a session and for the last one."""
        own = self._path_of(self.own).name
        with named_os_errors(f"looking at {self.path}"):
            for path in self.path.iterdir():
                if path.name != own:
                    path.unlink(missing_ok=True)

    def describe(self, slot: bytes) -> str:
        """Describe the owner of a slot, for people: "process 12 on host h, which opened the store
        at ...".
        """
        return str(self.find(slot))

    def find(self, slot: bytes) -> ProcessSlot:
        """Return what is known of a slot, also after it was settled if it was seen recently."""
        known = self._descriptions.get(slot)
        if known is None:
            known = self._read(slot)
            if known.process_id:
                if len(self._descriptions) >= _DESCRIPTIONS_MAX:
                    self._descriptions = {}
                self._descriptions[slot] = known
        return known

    def release(self) -> None:
        """The process has given the store up: its slot counts as that of a dead one."""
        self._file.close()

    def _lives(self) -> bool:
        return not self._file.closed

    def _all(self) -> list[ProcessSlot]:
        found = []
        directory = self._followed or self.path
        with named_os_errors(f"looking at {directory}"):
            names = [path.name for path in directory.iterdir()]
        for name in names:
            try:
                slot = bytes.fromhex(name)
            except ValueError:
                continue  # Being made just now, or not one of ours.
            if len(slot) == SLOT_BYTES:
                found.append(self.find(slot))
        return found

    def _path_of(self, slot: bytes) -> Path:
        return self.path / slot.hex()

    def _known_path(self, slot: bytes) -> Path:
        return (self._followed or self.path) / slot.hex()

    def _read(self, slot: bytes) -> ProcessSlot:
        try:
            said = loads_json((read_if_there(self._known_path(slot)) or b"").partition(b"\n")[0])
            return ProcessSlot(
                slot,
                int(said["pid"]),
                str(said["host"]),
                int(said["opened_ms"]),
                bytes.fromhex(said["session"]),
            )
        except (EoslogError, ValueError, KeyError, TypeError):
            return ProcessSlot(slot, 0, "", 0, b"")
