"""Counts of a store's events over all its processes, living and dead, since its creation.

Each process counts in a page of its own, `state/metrics/<slot>`, a mapped file that its death
leaves as it is. The pages of processes that are gone are folded into `state/metrics/totals.json`,
and removed. The file has the totals and the slots that are in them, and is replaced by one rename:

- F1. Take the lock of the counters; read the totals.
- F2. Replace the totals by their sum with the pages of the dead, whose slots it lists from then on.
- F3. Remove these pages.

Invariant: a page whose slot is listed is in the totals, one whose slot is not is in none. So
whatever dies in between, each page is added once: after a death before F2 it is still to be added,
after one before F3 only to be removed. Slots are random and are never used again; those without a
page leave the list with the next replacement.

`read_counts` takes no lock and writes nothing: it reads the totals, the pages whose slots they do
not list, and the totals again. If these are the same, no page was folded in between: each was then
in the totals or in its file, and none in both. A page in which nothing was counted may go without
F2.

A power cut may take what was counted since the last fold. Without totals, or with damaged ones, the
counts begin again.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.counter_page import CounterPage, read_counters
from eoslog.bindings.record_batch import crc32c
from eoslog.bindings.shared_page import LOCK_COUNTERS, SharedPage
from eoslog.common import clock
from eoslog.common.json_text import loads_json
from eoslog.errors import CorruptRecordError, EoslogError
from eoslog.fs.atomic_file import put_in_place, read_if_there, write_aside
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.overlay_directories import is_in_overlay
from eoslog.fs.private_files import make_directories
from eoslog.session.process_slots import SLOT_BYTES, ProcessSlots

DIRECTORY_NAME = "metrics"
TOTALS_NAME = "totals.json"
VERSION = 1
# A process that holds the lock for longer was stopped: the pages wait for a later fold.
_FOLD_S_MAX = 1.0
_READS_MAX = 100

_log = logging.getLogger(__name__)


class StoreCounts(NamedTuple):
    """Counts of a store's events by their names, without those that are 0; `since_ms` is when they
    began, None if the totals are lost.
    """

    since_ms: int | None
    counts: Mapping[str, int]


class _Totals(NamedTuple):
    since_ms: int
    counts: Mapping[str, int]
    folded: frozenset[bytes]

    def text(self) -> bytes:
        totals = {
            "since_ms": self.since_ms,
            "counts": dict(self.counts),
            "folded": sorted(slot.hex() for slot in self.folded),
        }
        document = {"version": VERSION, "totals": totals, "crc32c": crc32c(_text(totals))}
        return _text(document) + b"\n"


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _parse(path: Path, content: bytes | None) -> _Totals | None:
    """Return the totals; None if there are none. Raises CorruptRecordError."""
    if content is None:
        return None
    try:
        document = loads_json(content)
        totals = document["totals"]
        is_sound = (document["version"], document["crc32c"]) == (VERSION, crc32c(_text(totals)))
        folded = frozenset(bytes.fromhex(slot) for slot in totals["folded"])
        found = _Totals(int(totals["since_ms"]), dict(totals["counts"]), folded)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptRecordError(str(path), 0, f"not totals of counts: {error!r}") from error
    if not is_sound:
        raise CorruptRecordError(str(path), 0, "totals of another version, or damaged")
    return found


def read_counts(state_path: Path) -> StoreCounts:
    """Return the counts of all processes of a store, whether it is open or not. Writes nothing.

    Raises StoreError if a file cannot be read.
    """
    directory = state_path / DIRECTORY_NAME
    path = directory / TOTALS_NAME
    before = read_if_there(path)
    for _ in range(_READS_MAX):
        try:
            totals = _parse(path, before)
        except CorruptRecordError:
            totals = None
        counts = Counter(totals.counts if totals is not None else {})
        for slot in _slots_with_pages(directory):
            if totals is None or slot not in totals.folded:
                counts.update(_read_page(directory / slot.hex()))
        after = read_if_there(path)
        if after == before:
            break
        before = after
    return StoreCounts(None if totals is None else totals.since_ms, counts)


def _slots_with_pages(directory: Path) -> Iterator[bytes]:
    with named_os_errors(f"looking at {directory}"):
        try:
            paths = list(directory.iterdir())
        except FileNotFoundError:
            return
    for path in paths:
        with suppress(ValueError):
            slot = bytes.fromhex(path.name)
            if len(slot) == SLOT_BYTES:
                yield slot


def _read_page(path: Path) -> Mapping[str, int]:
    with named_os_errors(f"reading {path}"):
        try:
            return read_counters(str(path))
        except FileNotFoundError:
            return {}  # It was folded since, or nothing was counted in it.


class StoreCounters:
    """The counters of this process, and the totals of all. No call raises for the disk: what cannot
    be written now is folded later, with a line in the log.
    """

    def __init__(self, state_path: Path, slots: ProcessSlots, shared: SharedPage) -> None:
        """Make the page of this process, which has its slot."""
        self._state_path = state_path
        self._directory = state_path / DIRECTORY_NAME
        self.slots = slots
        self._shared = shared
        self._closed = False
        self.page = self._new_page()
        self.add = self.page.add

    def _new_page(self) -> CounterPage:
        path = self._directory / self.slots.own.hex()
        self._has_file = True
        try:
            with named_os_errors(f"making {path}"):
                make_directories(self._directory)
                return CounterPage(str(path))
        except EoslogError as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            self._has_file = False
            _log.warning("%s: what this process counts is lost if it is killed: %s", path, error)
            return CounterPage()

    def totals(self) -> StoreCounts:
        """Return the counts of all processes. Raises StoreError if a file cannot be read."""
        found = read_counts(self._state_path)
        if self._has_file:
            return found
        return StoreCounts(found.since_ms, Counter(found.counts) + Counter(self.page.read()))

    def begin(self) -> None:
        """Begin the counts of a store that has no totals, or damaged ones; fold what processes of
        earlier sessions left. For the first process of a session.
        """
        if not is_in_overlay(self._directory):  # Else nothing here is the store's.
            self._attempt(begin=True, sync=False)

    def fold_dead(self, *, sync: bool) -> None:
        """Fold the pages of dead processes. `sync`: a power cut does not take it back."""
        self._attempt(sync=sync)

    def close(self, *, sync: bool) -> None:
        """Fold the page of this process, which counts no more. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._attempt(own=True, sync=sync)

    def _attempt(self, *, sync: bool, begin: bool = False, own: bool = False) -> None:
        try:
            with self._shared.held(LOCK_COUNTERS, _FOLD_S_MAX):
                self._fold(sync, begin, own)
        except EoslogError as error:
            _log.warning("%s: counts are not folded now: %s", self._directory, error)

    def _fold(self, sync: bool, begin: bool, own: bool) -> None:
        path = self._directory / TOTALS_NAME
        pages = set(_slots_with_pages(self._directory))
        gone = {slot for slot in pages - {self.slots.own} if not self.slots.alive(slot)}
        if not (gone or begin or own):
            return
        totals, is_known = self._read_totals(path)
        counts = Counter(totals.counts)
        for slot in gone - totals.folded:
            counts.update(_read_page(self._directory / slot.hex()))
        if own:
            counts.update(self.page.read())
            gone |= {self.slots.own}
        if counts != totals.counts or (begin and not is_known):
            folded = (totals.folded | gone) & pages
            content = _Totals(totals.since_ms, counts, folded).text()
            # The name is not synced: a power cut leaves the old totals or these, both whole.
            write_aside(path, content, sync=sync and is_known)
            put_in_place(path)
        for slot in gone:
            with named_os_errors(f"removing the page of slot {slot.hex()}"):
                (self._directory / slot.hex()).unlink(missing_ok=True)

    def _read_totals(self, path: Path) -> tuple[_Totals, bool]:
        """Return the totals, and True; new ones, and False, if there are none that can be read."""
        try:
            found = _parse(path, read_if_there(path))
        except CorruptRecordError as error:
            _log.warning("%s: the store's counts begin again: %s", path, error)
            found = None
        else:
            if found is None:
                _log.info("%s: the store's counts begin", path)
        if found is not None:
            return found, True
        return _Totals(clock.now_ms(), {}, frozenset()), False
