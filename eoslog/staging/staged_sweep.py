"""Staged files that no decision needs any more: which, and how they are removed.

No link is followed: what one leads to is not the store's. Only the staging directory itself may be
one. Tasks may be writing at the same time. What appears while a directory is being removed is left
for the next sweep; a task that lost its directory finds out when it makes or closes a file.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from eoslog.fs.os_errors import named_os_errors
from eoslog.staging.staged_application import PREPARED, ApplicationRecord
from eoslog.staging.staged_names import MANIFESTS, TRASH_DIRECTORY, directory_name, run_generation
from eoslog.staging.staged_source import is_version_in


def removable_runs(
    application_path: Path, record: ApplicationRecord | None, oldest_ms: int
) -> list[Path]:
    """The runs of an application that can be removed as a whole; those that nobody decided if
    nothing was written in them since a time.
    """
    return [
        path
        for path in subdirectories(application_path)
        if not is_decided(path.name, record)
        and (is_over(path.name, record) or last_written_ms(path) <= oldest_ms)
    ]


def outdated_runs(application_path: Path, record: ApplicationRecord) -> list[Path]:
    """The runs whose names say that they are for a version which is in."""
    return [
        path
        for path in subdirectories(application_path)
        if not is_decided(path.name, record) and _is_outdated(path.name, record)
    ]


def _is_outdated(run_name: str, record: ApplicationRecord) -> bool:
    return is_version_in(run_name, record.version, record.count)


def is_decided(run_name: str, record: ApplicationRecord | None) -> bool:
    """True if the run has a job that is decided, and not completely in the log."""
    return (
        record is not None
        and record.state == PREPARED
        and record.run_id is not None
        and run_name == directory_name(record.run_id, "run_id")
    )


def is_over(run_name: str, record: ApplicationRecord | None) -> bool:
    """True if nothing that the run stages can be decided any more."""
    if record is None or record.run_id is None:
        return False
    if record.has_overtaken(run_name) or _is_outdated(run_name, record):
        return True
    # A run of the caller's own naming is for one job, and is known by that job's decision only.
    its_own = run_name == directory_name(record.run_id, "run_id")
    return its_own and run_generation(run_name) is None and record.state != PREPARED


def application_directories(staging_path: Path) -> list[Path]:
    """The directories of all applications that have one."""
    return [path for path in subdirectories(staging_path) if path.name != TRASH_DIRECTORY]


def subdirectories(path: Path) -> list[Path]:
    """The directories in a directory; none if it is gone."""
    return [path / one.name for one in _listed(path) if one.is_dir(follow_symlinks=False)]


def last_written_ms(run_path: Path) -> int:
    """Return when something in a run was last written, in milliseconds."""
    newest_ns = 0
    for path in (run_path, *_entries(run_path)):
        with named_os_errors(f"looking at {path}"):
            try:
                newest_ns = max(newest_ns, path.lstat().st_mtime_ns)
            except FileNotFoundError:
                continue
    return newest_ns // 1_000_000


def leads_elsewhere(path: Path, staging_path: Path) -> bool:
    """True if a link stands in a path's place, or on the way there from the staging directory."""
    below = path.relative_to(staging_path).parts
    with named_os_errors(f"looking at {path}"):
        return any(
            staging_path.joinpath(*below[:depth]).is_symlink() for depth in range(1, len(below) + 1)
        )


def remove_tree(path: Path, staging_path: Path) -> int:
    """Remove a directory as far as it goes; how many files went. None if a link leads there."""
    return 0 if leads_elsewhere(path, staging_path) else _remove_tree(path)


def _remove_tree(path: Path) -> int:
    removed = 0
    try:
        with os.scandir(path) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                removed += _remove_tree(path / entry.name)
            else:
                (path / entry.name).unlink(missing_ok=True)
                removed += 1
        path.rmdir()
    except OSError:
        # Gone already, or written to just now, or not ours to remove: the next sweep looks again.
        return removed
    return removed


def remove_manifests(run_path: Path) -> None:
    """Remove the lists of a run's files; called while no job of the run is under way."""
    try:
        for path in run_path.glob(MANIFESTS):
            path.unlink(missing_ok=True)
    except OSError:
        return


def remove_if_empty(path: Path) -> None:
    """Remove a directory unless there is something in it."""
    try:
        path.rmdir()
    except OSError:
        return


def _entries(path: Path) -> Iterator[Path]:
    for entry in _listed(path):
        yield path / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(path / entry.name)


def _listed(path: Path) -> list[os.DirEntry[str]]:
    """List a directory; empty if it is gone."""
    with named_os_errors(f"reading {path}"):
        try:
            with os.scandir(path) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
