"""State of one application in the store: its newest version, its newest run, and a job under way.

One record of the state log, of type APPLICATION, has the name of the application's staging
directory. The newest one counts: `prepared` is the decision of a job, `complete` means that nothing
is left to do. Rules J2 and J3 of `docs/semantics.md` are enforced here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from eoslog.common.json_text import check_kinds, fields_read_of
from eoslog.errors import StagedRunFencedError, StagedSourceError
from eoslog.staging.names import directory_name, new_run_id, run_generation
from eoslog.staging.source import VersionCount, VersionSource, counted_by
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.compacted_partition import State
from eoslog.transactions.state_key import APPLICATION

NO_VERSION = -1
PREPARED = "prepared"
COMPLETE = "complete"
# Names of overtaken runs, except registered ones, whose names have their generation.
OVERTAKEN_RUNS_MAX = 64


@dataclass(frozen=True, slots=True)
class ApplicationState:
    """State of an application, as `Store.application` returns it.

    `version` is the newest that is decided, -1 if a run was registered and nothing decided yet.
    `run_id` is the newest run and `generation` counts the runs. `state` is "prepared" while a
    decided job is not completely in the log, else "complete". `source_id` is the newest source of
    versions, None if there is none, and `base` is the version that is its 0.
    """

    app_id: str
    version: int
    run_id: str | None
    generation: int
    state: str
    source_id: str | None = None
    base: int = 0


@dataclass(frozen=True, slots=True)
class ApplicationRecord:
    """Record of an application; `job` is that of a prepared one, in the form of `staged_job`.

    `process` is the slot of the process that registered the newest run, b"" if unknown. `count` is
    the count of the source of versions, if there is one.
    """

    app_id: str
    version: int = NO_VERSION
    run_id: str | None = None
    generation: int = 0
    state: str = COMPLETE
    overtaken: tuple[str, ...] = ()
    job: Mapping[str, Any] | None = None
    process: bytes = b""
    count: VersionCount | None = None

    @classmethod
    def read(cls, state_log: CompactedLog, app_id: str) -> "ApplicationRecord | None":
        """Return the application's newest record, None if it has none."""
        return cls.read_by_name(state_log, directory_name(app_id, "app_id"))

    @classmethod
    def read_by_name(cls, state_log: CompactedLog, name: str) -> "ApplicationRecord | None":
        """Return the newest record of the application whose staging directory has this name.

        Raises CorruptRecordError if it is damaged.
        """
        state = state_log.get(APPLICATION, name)
        if state is None:
            return None
        with fields_read_of(f"the record of application {name!r}"):
            found = cls(
                app_id=state["app_id"],
                version=state["app_version"],
                run_id=state["run_id"],
                generation=state["generation"],
                state=state["state"],
                overtaken=tuple(state.get("overtaken", ())),
                job=state.get("job"),
                process=bytes.fromhex(state.get("process", "")),
                count=VersionCount.of_state(state.get("source")),
            )
            found._check()
        return found

    def _check(self) -> None:
        """Raise TypeError or ValueError for a field that is not valid."""
        check_kinds(str, self.app_id, *self.overtaken)
        check_kinds(int, self.version, self.generation)
        directory_name(self.app_id, "app_id")
        if self.run_id is not None:
            directory_name(self.run_id, "run_id")
        if self.job is not None:
            check_kinds(dict, self.job)
        if self.state not in (PREPARED, COMPLETE) or self.version < NO_VERSION:
            raise ValueError(f"state {self.state!r}, version {self.version}")

    def write(self, state_log: CompactedLog, *, sync: bool | None = None) -> None:
        """Append the record; on return it is as durable as the store's durability says."""
        state: dict[str, Any] = {
            "app_id": self.app_id,
            "app_version": self.version,
            "run_id": self.run_id,
            "generation": self.generation,
            "state": self.state,
        }
        if self.overtaken:
            state["overtaken"] = self.overtaken
        if self.job is not None:
            state["job"] = self.job
        if self.process:
            state["process"] = self.process.hex()
        if self.count is not None:
            state["source"] = self.count.as_state()
        frozen: State = state
        state_log.append(APPLICATION, self.name, frozen, sync=sync)

    def says_the_same(self, other: "ApplicationRecord | None") -> bool:
        """True if both records are equal, even if one of them was read back from the log."""
        return other is not None and self._text() == other._text()

    def _text(self) -> str:
        return json.dumps([self.version, self.run_id, self.generation, self.state, self.job])

    @property
    def name(self) -> str:
        """Name of the record, and of the application's staging directory."""
        return directory_name(self.app_id, "app_id")

    @property
    def shown(self) -> ApplicationState:
        shown = (self.app_id, self.version, self.run_id, self.generation, self.state)
        if self.count is None:
            return ApplicationState(*shown)
        return ApplicationState(*shown, self.count.source_id, self.count.base)

    def registered(self, process: bytes) -> "ApplicationRecord":
        """Return the record with a new run, which overtakes all others."""
        generation = self.generation + 1
        return self._with_run(new_run_id(generation), generation, process)

    def decided(
        self,
        version: int,
        run_id: str | None,
        job: Mapping[str, Any] | None,
        process: bytes,
        count: VersionCount | None = None,
    ) -> "ApplicationRecord":
        """Return the record that decides a version; `job` is None if there is nothing to adopt.

        With `count`, that of a source, the source's driver decides which run is the newest. Raises
        StagedRunFencedError if the run was overtaken.
        """
        self.check_run(run_id)
        record = self
        if count is not None and not count.overtakes(self.count):
            record = replace(self, run_id=run_id, process=process, count=count)
        elif run_id is not None and run_id != self.run_id:
            generation = max(self.generation + 1, run_generation(run_id) or 0)
            record = self._with_run(run_id, generation, process)
        state = COMPLETE if job is None else PREPARED
        return replace(record, version=version, state=state, job=job, count=count or self.count)

    def counted_by(
        self, source: VersionSource | None, wanted: int, state_log: CompactedLog
    ) -> VersionCount | None:
        """Return the count once the source decides its version `wanted` (K2-K4, K6, K7).

        Raises StagedSourceError, StagedRunFencedError.
        """
        if source is None:
            if self.count is not None:
                raise StagedSourceError(
                    f"versions of application {self.app_id!r} are counted by source "
                    f"{self.count.source_id!r}: give other jobs an application id of their own"
                )
            return None
        count = counted_by(source, wanted, self.app_id, self.version, self.count)
        # A source without a place may count for several applications, and leave one of them.
        if count.place is None or not count.overtakes(self.count):
            return count
        others = self._other_counts(state_log)
        self._check_not_replaced(source.source_id, others)
        if source.place is None or self.count is not None:
            return count
        there = [other for other in others if other.source.place == source.place]
        if there and not source.new_allowed:
            other = there[0].record
            raise StagedSourceError(
                f"application {self.app_id!r} is new, and the versions counted at {source.place} "
                f"before are in, as application {other.app_id!r}, up to its version {other.version}"
            )
        return count.following(other.source for other in there)

    def _check_not_replaced(self, source_id: str, others: "list[_Counted]") -> None:
        for other in others:
            if other.source.replaced(source_id):
                raise StagedSourceError(
                    f"source {source_id!r} of application {self.app_id!r} was replaced by source "
                    f"{other.source.source_id!r} of application {other.record.app_id!r}, at "
                    f"{other.source.place}"
                )

    def _other_counts(self, state_log: CompactedLog) -> "list[_Counted]":
        """Return the other applications that have versions of a source."""
        found = []
        for name in state_log.names(APPLICATION):
            other = ApplicationRecord.read_by_name(state_log, name)
            if other is None or other.count is None or other.app_id == self.app_id:
                continue
            if other.version > NO_VERSION:
                found.append(_Counted(other, other.count))
        return found

    def completed(self) -> "ApplicationRecord":
        """Return the record once all of the job is in the log."""
        return replace(self, state=COMPLETE, job=None)

    def check_run(self, run_id: str | None, describe: Callable[[bytes], str] = bytes.hex) -> None:
        """Raise StagedRunFencedError if a newer run is known."""
        if run_id is not None and self.has_overtaken(directory_name(run_id, "run_id")):
            by = f", of {describe(self.process)}" if self.process else ""
            raise StagedRunFencedError(
                f"run {run_id!r} of application {self.app_id!r} was overtaken by run "
                f"{self.run_id!r} (generation {self.generation}{by})"
            )

    def has_overtaken(self, run_name: str) -> bool:
        """True if the run with a directory of this name is known to be older than the newest."""
        if self.run_id is None or run_name == directory_name(self.run_id, "run_id"):
            return False
        generation = run_generation(run_name)
        if generation is not None:
            return generation <= self.generation
        return run_name in self.overtaken

    def _with_run(self, run_id: str, generation: int, process: bytes) -> "ApplicationRecord":
        overtaken = self.overtaken
        if self.run_id is not None and run_generation(self.run_id) is None:
            overtaken = (*overtaken, directory_name(self.run_id, "run_id"))[-OVERTAKEN_RUNS_MAX:]
        return replace(
            self, run_id=run_id, generation=generation, overtaken=overtaken, process=process
        )


class _Counted(NamedTuple):
    record: ApplicationRecord
    source: VersionCount
