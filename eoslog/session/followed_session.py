"""The session of the processes that have a store open, as a process sees it that only reads.

It takes no part: it has no slot, no lock and no file there. Its own counters rise with theirs.

Invariant: a session counts once its first process has taken the store up, which is when
`session.json` names it. Before, a partition that was opened may lack what its opener has yet to put
right: the hold of a staged job that is being adopted.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from eoslog.bindings.shared_page import FollowedPage, SharedPage
from eoslog.common.durability import Durability, check_durability
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StoreError, StoreReopenedError
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.paths import StorePaths
from eoslog.session.store_session import SessionFile

# Whether there is another session is looked at so often at most.
LOOK_S = 0.01
_NO_FILE = (0, 0)


class FollowedSession:
    """The newest session of a store that was taken up; for several threads."""

    def __init__(self, store: StorePaths) -> None:
        self._store = store
        self._root = _identity(store.root)
        self._looked_s = 0.0
        self._own: SharedPage | None = None
        self._seen: tuple[bytes, tuple[int, int], FollowedPage] | None = None
        self.unrecovered: frozenset[TopicPartition] = frozenset()
        self.topic_defaults: Mapping[str, int] = {}
        self.durability: Durability = "commit"
        # Called when there is another session.
        self.on_next: Callable[[], object] = lambda: None

    @property
    def id(self) -> bytes | None:
        """Id of the session that was seen last; None if none was taken up."""
        return None if self._seen is None else self._seen[0]

    def give_counters(self, own: SharedPage) -> None:
        """Have the counters of this reader's own page rise with those of the session."""
        self._own = own
        if self._seen is not None:
            own.follow(self._seen[2])

    def look(self) -> bytes | None:
        """Return the id of the session, of the next one if there is one by now."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            if not self.is_current():
                self._take_up()
            self._looked_s = now_s
        return self.id

    def counts(self, session: bytes) -> bool:
        """True if what a session's processes wrote counts: it was taken up, or came before the
        newest one, which was.
        """
        return self.is_taken_up() or session == self.id

    def is_taken_up(self) -> bool:
        """Look at once; True if the newest session was taken up."""
        if not self.is_current():
            self._take_up()
        return self.is_current()

    def is_current(self) -> bool:
        """True if no other session has begun since the last look."""
        if self._seen is None:
            return False
        session, identity, page = self._seen
        with named_os_errors(f"looking at {self._store.shared}"):
            return _identity(self._store.shared) == identity and page.is_of(session)

    def _take_up(self) -> None:
        """Follow the session that there is, if it was taken up. Raises StoreReopenedError if it is
        that of another store.
        """
        with named_os_errors(f"reading {self._store.session}"):
            identity = _identity(self._store.shared)
            if identity != _NO_FILE and _identity(self._store.root) != self._root:
                raise StoreReopenedError(
                    f"{self._store.root} was replaced since it was opened to be read: open it again"
                )
            found = SessionFile.read(self._store.session)
            session = SharedPage.read_session(str(self._store.shared))
            if found is None or session is None or found.session != session.hex():
                return
            try:
                page = FollowedPage(str(self._store.shared), session)
            except (StoreError, FileNotFoundError):
                return  # The next one begins just now.
        before = self.id
        self.unrecovered = frozenset(map(TopicPartition.parse, found.unrecovered))
        self.topic_defaults = found.topic_defaults
        self.durability = check_durability(found.durability)
        self._seen = session, identity, page
        if before != session:
            if self._own is not None:
                self._own.follow(page)
            self.on_next()


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return _NO_FILE
    return found.st_dev, found.st_ino
