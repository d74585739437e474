"""A session of a store: from the first process that opens it to the last one that closes it.

The first recovers the store from the disk, as after any stop, and creates what all processes share:
`state/shared`, with the session's random id, and `state/session.json`, with what a process that
joins must know. Those that join recover nothing: they attach to what is there. The last one to
close writes everything down, and leaves the trace of a clean close; the others only detach.

Invariants: processes join and leave one at a time (`store_lock`); all processes of a session run
on one host, in one container, with one durability and the same settings for topics that have none
of their own; when all have died, the next one is a first again, and everything is recovered.

A file system that other hosts may have mounted is no place to share maps and locks: there a store
is open in one process at a time. Locks may not reach from host to host there either, so that
process gives a sign of life in the time of `session.json`, by the file system's own clock.
"""

import copy
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from eoslog.bindings.shared_page import (
    COUNTER_ARRIVALS,
    COUNTER_NOTED,
    SESSION_BYTES,
    SharedPage,
)
from eoslog.common import clock
from eoslog.common.config import TOPIC_SETTINGS, ConfigValue, topic_defaults_of
from eoslog.common.durability import (
    REMEMBERED,
    Durability,
    Remembered,
    check_durability,
    is_weaker,
)
from eoslog.common.json_text import loads_json
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StoreFailedError, StoreInUseError
from eoslog.fs.atomic_file import read_if_there, write_atomically
from eoslog.fs.file_system import Mount, boot_id, process_namespace
from eoslog.fs.identity_files import META_PROPERTIES
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.counters import StoreCounters
from eoslog.session.lock import StoreLock, moment_text
from eoslog.session.paths import StorePaths
from eoslog.session.process_slots import ProcessSlots
from eoslog.session.settings import StoreSettings

# Whether a store may be open in several processes.
JOINING = True

SESSION_VERSION = 1
# A process on another host that gave no sign of life for so long is taken for dead.
SIGN_OF_LIFE_S = 30.0
SIGN_OF_LIFE_EVERY_S = 5.0


class SessionFile(NamedTuple):
    """Content of `session.json`: the process that began the session, and what those that join must
    know.

    `unrecovered` are the partitions that needed recovery when the session began, `left` those
    that a process which has closed the store could not repair. While `asked` is false, no process
    has given a durability or defaults of topics: the first that does sets them. `remembered` is the
    durability that the store remembered then.
    """

    session: str
    pid: int
    host: str
    boot_id: str
    process_namespace: str
    opened_ms: int
    durability: str
    topic_defaults: Mapping[str, int]
    unrecovered: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    asked: bool = True
    remembered: str = "commit"

    def __str__(self) -> str:
        return f"by process {self.pid} on {self.host} since {moment_text(self.opened_ms)}"

    def write(self, path: Path) -> None:
        """Replace the file. Not synced: after a power cut it is of no use."""
        document = {"version": SESSION_VERSION, **self._asdict()}
        write_atomically(path, json.dumps(document).encode(), sync=False)

    @classmethod
    def read(cls, path: Path) -> "SessionFile | None":
        """Read the file; None if it is not there, or is not what was written."""
        content = read_if_there(path)
        if content is None:
            return None
        try:
            said = loads_json(content)
            if said.pop("version") != SESSION_VERSION:
                return None
            unrecovered, left = tuple(said.pop("unrecovered")), tuple(said.pop("left"))
            found = cls(unrecovered=unrecovered, left=left, **said)
            check_durability(found.durability)
            check_durability(found.remembered)
            moment_text(found.opened_ms)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return found


class StoreSession:
    """Part of this process in the session of a store; `enter_store` makes it.

    `durability` and `topic_defaults` are those of the whole session, or those that this process
    began with before any process gave some. `slots` has the processes that take part, `shared`
    their locks, counters and wake-up word.
    """

    def __init__(
        self,
        paths: StorePaths,
        lock: StoreLock,
        mount: Mount,
        durability: Durability | Remembered | None,
        config: Mapping[str, ConfigValue],
        remembered: StoreSettings,
    ) -> None:
        """Begin a session if this process is alone, else join the one there is.

        The store is locked, for opening too; that alone is the caller's to free if this raises:
        StoreInUseError where the session does not allow it, or another StoreError.
        """
        self._paths = paths
        self.lock = lock
        self._mount = mount
        self._failure: StoreFailedError | None = None
        self._signed_s = 0.0
        self.first = lock.alone
        try:
            if self.first:
                self._begin(durability, topic_defaults_of(config), remembered)
            else:
                self._join(durability, topic_defaults_of(config), remembered)
            self.slots = ProcessSlots(paths.state, self.id)
            self.counters = StoreCounters(paths.state, self.slots, self.shared)
            # After it has its slot, and before it does anything that others would have to end.
            self.shared.raise_counter(COUNTER_ARRIVALS)
            # What must not become other files while the store is open.
            with named_os_errors(f"looking at the files of {paths.root}"):
                self._files = {
                    path: _identity(path)
                    for path in (paths.root, paths.root / META_PROPERTIES, paths.shared, lock.path)
                }
        except BaseException:
            # An interrupt's traceback may keep this object for long.
            self._give_up_beginning()
            raise

    def _give_up_beginning(self) -> None:
        if hasattr(self, "counters"):
            self.counters.page.close()
        if hasattr(self, "slots"):
            self.slots.release()
        if hasattr(self, "shared"):
            self.shared.close()

    def _begin(
        self,
        durability: Durability | Remembered | None,
        topic_defaults: Mapping[str, int],
        remembered: StoreSettings,
    ) -> None:
        if self._mount.network:
            self._check_no_other_host()
        self.id = os.urandom(SESSION_BYTES)
        given = None if durability == REMEMBERED else durability
        self.durability: Durability = given or remembered.durability
        self.topic_defaults = {**topic_defaults_of(remembered.config), **topic_defaults}
        self._file = SessionFile(
            session=self.id.hex(),
            pid=os.getpid(),
            host=os.uname().nodename,
            boot_id=boot_id(),
            process_namespace=process_namespace(),
            opened_ms=clock.now_ms(),
            durability=self.durability,
            topic_defaults=self.topic_defaults,
            asked=durability is not None or bool(topic_defaults),
            remembered=remembered.durability,
        )
        if self._mount.network:
            self._file.write(self._paths.session)
        with named_os_errors(f"making {self._paths.shared}"):
            self.shared = SharedPage(str(self._paths.shared), self.id, create=True)

    def _join(
        self,
        durability: Durability | Remembered | None,
        topic_defaults: Mapping[str, int],
        remembered: StoreSettings,
    ) -> None:
        root = self._paths.root
        found = SessionFile.read(self._paths.session)
        with named_os_errors(f"reading {self._paths.shared}"):
            session = SharedPage.read_session(str(self._paths.shared))
        if found is None or session is None or found.session != session.hex():
            raise StoreFailedError(
                f"{root} is open in other processes, but {self._paths.session.name} or "
                f"{self._paths.shared.name}, which they share, was removed or replaced: close the "
                "store in all of them, then open it again"
            )
        if found.boot_id != boot_id():
            raise StoreInUseError(
                f"{root} is open on another host: {found}; the processes that share a store run on "
                "one host"
            )
        if found.process_namespace != process_namespace():
            raise StoreInUseError(
                f"{root} is open in another container: {found}; the processes that share a store "
                "have one namespace of process ids (docker run --pid, shareProcessNamespace)"
            )
        if found.asked:
            self._check_same(found, durability, topic_defaults, remembered)
        elif durability is not None or topic_defaults:
            given = remembered.durability if durability == REMEMBERED else durability
            found = found._replace(
                durability=given or found.durability,
                topic_defaults={**found.topic_defaults, **topic_defaults},
                asked=True,
                remembered=remembered.durability,
            )
        self.id = session
        self.durability = check_durability(found.durability)
        self.topic_defaults = dict(found.topic_defaults)
        self._file = found
        with named_os_errors(f"opening {self._paths.shared}"):
            self.shared = SharedPage(str(self._paths.shared), self.id, create=False)
        self._file.write(self._paths.session)

    def _check_same(
        self,
        found: SessionFile,
        durability: Durability | Remembered | None,
        topic_defaults: Mapping[str, int],
        remembered: StoreSettings,
    ) -> None:
        root = self._paths.root
        whom = f"{found} or by those that joined it"  # Who began the session may have left it.
        wanted = f"{durability!r}"
        if durability == REMEMBERED:
            # Another one that the store remembers since then is for the next session.
            promised = {remembered.durability, check_durability(found.remembered)}
            refused = all(is_weaker(check_durability(found.durability), one) for one in promised)
            wanted = f"{remembered.durability!r}, which the store remembers"
        else:
            refused = durability not in (None, found.durability)
        if refused:
            raise StoreInUseError(
                f"{root} is open with durability {found.durability!r}, {whom}, and not with "
                f"{wanted}: all its processes share one; open it with durability="
                f"{found.durability!r}, or close it there first"
            )
        for name, value in topic_defaults.items():
            theirs = found.topic_defaults.get(name, TOPIC_SETTINGS[name].default)
            if value != theirs:
                raise StoreInUseError(
                    f"{root} is open with {name}={theirs} for its topics, {whom}, and not with "
                    f"{value}: all its processes share one; open it with the same, or close it "
                    "there first"
                )

    def _check_no_other_host(self) -> None:
        """Check for a sign of life from another host; locks may not reach from host to host."""
        found = SessionFile.read(self._paths.session)
        if found is None or found.boot_id == boot_id():
            return
        with named_os_errors(f"looking at {self._paths.session}"):
            # The same clock for both.
            os.utime(self.lock.opening_path)
            age_s = self.lock.opening_path.stat().st_mtime - self._paths.session.stat().st_mtime
        if age_s < SIGN_OF_LIFE_S:
            raise StoreInUseError(
                f"{self._paths.root} is open on another host: {found}; its last sign of life is "
                f"{max(0.0, age_s):.0f} s old, and after {SIGN_OF_LIFE_S:g} s it counts as dead. "
                f"On {self._mount} one process at a time has a store open"
            )

    # While it is open.

    @property
    def unrecovered(self) -> frozenset[TopicPartition]:
        """Partitions to be recovered when the session began; for processes that joined."""
        return frozenset(TopicPartition.parse(name) for name in self._file.unrecovered)

    def opened(self, unrecovered: Iterable[TopicPartition]) -> None:
        """The store is taken up; from now on other processes may join, and leave.

        `unrecovered` are the partitions that the first process has not recovered yet.
        """
        if self.first:
            names = tuple(sorted(map(str, unrecovered)))
            self._file = self._file._replace(unrecovered=names)
            self._file.write(self._paths.session)
            self.counters.begin()
            self.slots.settle_older()
        self.lock.opened(share=self.may_be_shared)

    def note_run(self) -> None:
        """Write down in which run of the kernel this is, before a journal is begun: what one of
        another run holds may be on the disk nowhere else. For the first process.
        """
        self._file.write(self._paths.session)

    @property
    def may_be_shared(self) -> bool:
        """True if other processes may join, now or later."""
        return JOINING and not self._mount.network

    @property
    def arrivals(self) -> int:
        """Count of the processes that took part in the session so far."""
        return self.shared.counter(COUNTER_ARRIVALS)

    @property
    def changes(self) -> int:
        """Number that is another one once a process has appended to a partition, or deleted
        segments of one.
        """
        return self.shared.counter(COUNTER_NOTED)

    def note_change(self) -> None:
        """Have the other processes look at their partitions."""
        self.shared.raise_counter(COUNTER_NOTED)

    def look(self) -> None:
        """Look whether the files are still those that were opened, and give a sign of life.

        Raises StoreFailedError, each time again, once they are not: see `check`.
        """
        self.check()
        if not self._file.asked:
            self._hear_what_was_asked()
        now_s = time.monotonic()
        if self._mount.network and now_s - self._signed_s >= SIGN_OF_LIFE_EVERY_S:
            found = SessionFile.read(self._paths.session)
            if found is None or found.session != self.id.hex():
                self._fail(f"the session of process {os.getpid()} was taken over, {found}")
            with named_os_errors(f"giving a sign of life in {self._paths.session}"):
                os.utime(self._paths.session)
            self._signed_s = now_s

    def _hear_what_was_asked(self) -> None:
        """Go by the defaults of topics that a process which came later wants; what this process
        itself appends stays as durable as it was.
        """
        found = SessionFile.read(self._paths.session)
        if found is not None and found.session == self.id.hex() and found.asked:
            self._file = found
            self.topic_defaults.update(found.topic_defaults)

    def check(self) -> None:
        """Raise StoreFailedError if other files were put in the place of the store's."""
        if self._failure is not None:
            raise copy.copy(self._failure)  # Raised again and again, its traceback would grow.
        for path, identity in self._files.items():
            with named_os_errors(f"looking at {path}"):
                try:
                    found = _identity(path)
                except FileNotFoundError:
                    self._fail(f"{path} is gone")
            if found != identity:
                self._fail(f"{path} is another file now")

    def _fail(self, what: str) -> NoReturn:
        self._failure = StoreFailedError(
            f"{self._paths.root} was replaced while it was open: {what}. Nothing more is written; "
            "close the store and open the one that is there now"
        )
        raise self._failure

    # Closing.

    def begin_leaving(self) -> bool:
        """Keep others from coming and going until `leave`; whether this process is the last one.

        Raises StoreInUseError if another one takes too long with opening or closing,
        StoreFailedError if the session's file is lost.
        """
        last = self.lock.begin_closing()
        found = SessionFile.read(self._paths.session)
        if found is None or found.session != self.id.hex():
            # It has what others left unrecovered.
            self._fail(f"{self._paths.session} is gone, or of another session")
        self._file = found
        return last

    @property
    def was_shared(self) -> bool:
        """True if other processes took part in the session."""
        return self.arrivals > 1

    @property
    def left(self) -> frozenset[TopicPartition]:
        """Partitions that other processes left unrecovered, as `begin_leaving` found it."""
        return frozenset(TopicPartition.parse(name) for name in self._file.left)

    def leave_behind(self, left: Iterable[TopicPartition]) -> None:
        """Tell those who stay what this process could not put right; between the other two."""
        names = set(map(str, left)) - set(self._file.left)
        if names:
            names.update(self._file.left)
            self._file = self._file._replace(left=tuple(sorted(names)))
            self._file.write(self._paths.session)

    def leave(self, *, last: bool) -> None:
        """Leave the session; with `last`, no process is left, and it is over.

        A second call does nothing, or what an interrupt left of the first.
        """
        self.slots.release()
        try:
            if last and self._failure is None:
                self.slots.settle_older()
                self.slots.settle(self.slots.own)
                with named_os_errors(f"removing {self._paths.session}"):
                    self._paths.session.unlink(missing_ok=True)
        finally:
            self.counters.page.close()
            self.shared.close()
            self.lock.release()

    def abandon(self) -> None:
        """Give everything up as the death of the process would."""
        self.leave(last=False)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
