"""The decisions about staged jobs, as a store's callers ask for them."""

from collections.abc import Iterable

from eoslog.staging.staged_application import ApplicationState
from eoslog.staging.staged_commit import StagedCommit, StagedCommits
from eoslog.staging.staged_message import StagedMessage
from eoslog.staging.staged_offsets import OffsetsOfGroups
from eoslog.staging.staged_source import VersionSource


class StoreStagedJobs:
    """Staged jobs, a part of a `Store`, which is made on top of it."""

    _staged: StagedCommits

    def commit_staged(
        self,
        app_id: str,
        version: int,
        messages: Iterable[StagedMessage],
        run_id: str | None = None,
        offsets: OffsetsOfGroups | None = None,
        source: VersionSource | None = None,
    ) -> StagedCommit:
        """Make the staged files of all messages part of the log by one decision.

        A version of the application that is in already is a no-op. `offsets` has for each group
        (its name, or a consumer's `group_metadata()`) the offsets that the same decision commits,
        as `Consumer.commit` takes them. `groups()` shows the version itself, for a group with the
        application's name, at `eoslog-version` 0. With a `source`, which needs a run id, the
        version is what the source counts, and only the source's newest driver is let in. On return
        the job is in the log and visible, as durable as the store's durability says; a crash after
        the decision is made good by the process that opens the store next.

        Raises StagedCommitError (also behind a job that is decided and cannot be completed just
        now), StagedRunFencedError, StagedSourceError if a new source follows on another one
        unallowed, StoreFullError, ValueError, TypeError, and what `Consumer.commit` raises for
        offsets that are wrong: nothing was decided; StagedJobIncompleteError: this version, or a
        later one, is decided, and completed later; StoreFailedError.
        """
        self._check_open()
        return self._staged.commit(app_id, version, messages, run_id, offsets, source)

    def application(self, app_id: str) -> ApplicationState | None:
        """Return the state of an application's staged jobs; None if there is none."""
        self._check_open()
        return self._staged.application(app_id)

    def begin_run(self, app_id: str) -> str:
        """Register a new run of an application, which overtakes all others; its name. Durable."""
        self._check_open()
        return self._staged.begin_run(app_id)

    def sweep_run(self, app_id: str, run_id: str) -> int:
        """Remove what a run staged that will not be committed; how many files went."""
        self._check_open()
        return self._staged.sweep_run(app_id, run_id)

    def _check_open(self) -> None:
        raise NotImplementedError
