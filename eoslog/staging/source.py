"""Source of an application's versions that counts them itself: a stream with its checkpoint.

Its numbers rise only as long as its count is kept. So the record of the application holds which
count it is, and the version at which it began. Rules K1-K8 of `docs/staged-commit.md`.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from eoslog.common.arguments import whole_number
from eoslog.common.json_text import check_kinds
from eoslog.errors import StagedReplayError, StagedRunFencedError, StagedSourceError
from eoslog.staging.message import check_version
from eoslog.staging.names import directory_name

# Overtaken drivers and sources that are remembered; older ones look new again.
OVERTAKEN_MAX = 64
_DIGEST_DIGITS = 12
_NO_SOURCE = "0" * _DIGEST_DIGITS
_TEXT_CHARACTERS_MAX = 46
_VERSION_RUN = re.compile(r"v([0-9]{19})-([0-9a-f]{12})-.+", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class VersionSource:
    """Source that counts the versions passed to `Store.commit_staged`.

    `source_id` is the same as long as the count goes on, `driver_id` names one life of the driver
    and `place`, if known, is where the count is kept: texts that are not empty. `new_allowed` lets
    a new source follow another one. `input_id` and `rows`, if known, distinguish a replay from
    another version of the same number: `input_id` is the same text for the same input, and `rows`
    is the number of rows (0 or more).
    """

    source_id: str
    driver_id: str
    place: str | None = None
    new_allowed: bool = False
    input_id: str | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        directory_name(self.source_id, "source_id")
        directory_name(self.driver_id, "driver_id")
        if self.place is not None:
            directory_name(self.place, "place")
        if not isinstance(self.new_allowed, bool):
            raise TypeError(f"new_allowed must be a bool, got {type(self.new_allowed).__name__}")
        if self.input_id is not None:
            directory_name(self.input_id, "input_id")
        if self.rows is not None and whole_number(self.rows, "rows") < 0:
            raise ValueError(f"rows must be 0 or more, got {self.rows}")


@dataclass(frozen=True, slots=True)
class VersionCount:
    """Count of versions of an application's newest source, as its record holds it.

    `base` is the version of the application that is the source's 0. `input_id` and `rows` are
    those of its newest version, as far as they are known.
    """

    source_id: str
    base: int
    driver_id: str
    place: str | None = None
    drivers_before: tuple[str, ...] = ()
    sources_before: tuple[str, ...] = ()
    input_id: str | None = None
    rows: int | None = None

    @classmethod
    def of_state(cls, state: Mapping[str, Any] | None) -> "VersionCount | None":
        """Restore from a state of `as_state` in a record; an error means that it is damaged."""
        if state is None:
            return None
        found = cls(
            state["id"],
            state["base"],
            state["driver"],
            state.get("place"),
            tuple(state.get("drivers", ())),
            tuple(state.get("sources", ())),
            state.get("input"),
            state.get("rows"),
        )
        check_kinds(int, found.base, found.rows or 0)
        check_kinds(str, found.source_id, found.driver_id, found.place or "", found.input_id or "")
        check_kinds(str, *found.drivers_before, *found.sources_before)
        return found

    def as_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "id": self.source_id,
            "base": self.base,
            "driver": self.driver_id,
            "place": self.place,
            "drivers": self.drivers_before,
            "sources": self.sources_before,
            "input": self.input_id,
            "rows": self.rows,
        }
        return {name: value for name, value in state.items() if value not in (None, ())}

    def overtakes(self, older: "VersionCount | None") -> bool:
        """True if another driver or source took the count over."""
        return older is None or self.driver_id != older.driver_id

    def is_of(self, source: VersionSource) -> bool:
        """True if the newest version has the source's content, as far as both are known (K8)."""
        if self.input_id is not None and source.input_id is not None:
            return self.input_id == source.input_id
        return self.rows is None or source.rows is None or self.rows == source.rows

    def replaced(self, source_id: str) -> bool:
        """True if this count followed that of the source."""
        return _digest(source_id) in self.sources_before

    def following(self, others: "Iterable[VersionCount]") -> "VersionCount":
        """Return this count as the one that follows others, which are refused from now on."""
        digests = (_digest(other.source_id) for other in others)
        return replace(self, sources_before=(*self.sources_before, *digests)[-OVERTAKEN_MAX:])


def counted_by(
    source: VersionSource, wanted: int, app_id: str, version: int, known: VersionCount | None
) -> VersionCount:
    """Return an application's count at `version` once the source decides `wanted` (K2, K4, K7).

    Raises StagedSourceError if the source is new or went back and that is not allowed, or if it was
    overtaken; StagedRunFencedError if its driver was.
    """
    if known is None or source.source_id != known.source_id:
        known = _begun_after(source, app_id, version, known)
    drivers = known.drivers_before
    if source.driver_id != known.driver_id:
        if _digest(source.driver_id) in drivers:
            raise StagedRunFencedError(
                f"driver {source.driver_id!r} of application {app_id!r} was overtaken by driver "
                f"{known.driver_id!r}"
            )
        drivers = (*drivers, _digest(known.driver_id))[-OVERTAKEN_MAX:]
    went_back = known.base + wanted < version
    if went_back or (known.base + wanted == version and not known.is_of(source)):
        if not source.new_allowed:
            raise _went_back(source, wanted, app_id, version, known)
        known = replace(known, base=version + 1 - wanted)
    place = known.place if source.place is None else source.place
    if known.base + wanted > version:
        known = replace(known, input_id=source.input_id, rows=source.rows)
    return replace(known, driver_id=source.driver_id, drivers_before=drivers, place=place)


def _went_back(
    source: VersionSource, wanted: int, app_id: str, version: int, known: VersionCount
) -> StagedSourceError:
    counts = f"source {source.source_id!r} of application {app_id!r} counts {wanted}"
    newest = version - known.base
    if wanted < newest:
        return StagedSourceError(
            f"{counts}, after {newest}: it went back, or another driver is ahead of this one"
        )
    return StagedReplayError(
        f"{counts}, which is in, but this one has other input, or is a repetition with other rows "
        f"({source.rows} rows now, {known.rows} then)"
    )


def _begun_after(
    source: VersionSource, app_id: str, version: int, known: VersionCount | None
) -> VersionCount:
    """Return the count that the source begins after all versions that are in."""
    if known is not None and known.replaced(source.source_id):
        raise StagedSourceError(
            f"application {app_id!r}: source {source.source_id!r} was replaced by source "
            f"{known.source_id!r}, which writes on under this name: use another application id"
        )
    if version >= 0 and not source.new_allowed:
        before = "none" if known is None else repr(known.source_id)
        raise StagedSourceError(
            f"application {app_id!r} is at version {version}, counted by source {before}; source "
            f"{source.source_id!r} is a new one, whose versions begin at 0 again"
        )
    if known is None:
        return VersionCount(source.source_id, version + 1, source.driver_id, source.place)
    sources = (*known.sources_before, _digest(known.source_id))[-OVERTAKEN_MAX:]
    return replace(
        known,
        source_id=source.source_id,
        base=version + 1,
        place=source.place,
        sources_before=sources,
    )


def version_run_id(version: int, source_id: str | None, text: str) -> str:
    """Return a name for a run of one job, with the version of its files in it (K5).

    The version is the source's, or the application's own without one. All files of the run are
    removed once the version is in. `text` distinguishes it from others of the same version. Raises
    TypeError, ValueError.
    """
    check_version(version)
    if source_id is not None:
        directory_name(source_id, "source_id")
    kept = directory_name(text, "text")
    if len(kept) > _TEXT_CHARACTERS_MAX or "~" in kept:
        kept = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"v{version:019d}-{_digest(source_id)}-{kept}"


def is_version_in(run_name: str, version: int, count: VersionCount | None) -> bool:
    """True if a run's name shows that its files can no longer be decided.

    `version` and `count` are the application's.
    """
    found = _VERSION_RUN.fullmatch(run_name)
    if found is None:
        return False
    of_version, source = int(found[1]), found[2]
    if count is None:
        return source == _NO_SOURCE and of_version <= version
    if source == _NO_SOURCE or source in count.sources_before:
        return True
    return source == _digest(count.source_id) and count.base + of_version <= version


def _digest(text: str | None) -> str:
    if text is None:
        return _NO_SOURCE
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
