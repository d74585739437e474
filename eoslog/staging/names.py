"""Names of staged files and of their directories.

Applications, runs and attempts are named by any text. A text that is a safe file name is its own
directory's name, so that people find it. Any other directory has the safe characters of its text,
`~`, which is in no safe name, and a digest of the text: two texts never share a directory.

A job without a name gets one from eoslog. Such an application has one version. It has no group, so
that `Store.groups` is not full of them, and all their records are in one partition of
`__transaction_state`: a job that creates a partition of an internal topic waits for several syncs.
"""

import hashlib
import os
import re
import uuid
from pathlib import Path

from eoslog.transactions.state_key import state_partition_of

# Beside the applications' directories, and the name of none of them.
TRASH_DIRECTORY = "~trash"
MANIFESTS = "manifest-*.json"
NAME_CHARACTERS_MAX = 80

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
_KEPT_CHARACTERS = 40
_WITH_DIGEST = re.compile(r"[A-Za-z0-9_.-]*~[0-9a-f]{32}", re.ASCII)
_RUN = re.compile(r"run-([0-9]{10})-[0-9a-f]{16}", re.ASCII)


def directory_name(text: str, what: str) -> str:
    """Return the name of the directory of an application, run or attempt; errors name `what`.

    Raises TypeError if `text` is not a str, ValueError if it is empty.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, got {type(text).__name__}")
    if not text:
        raise ValueError(f"{what} must not be empty")
    if len(text) <= NAME_CHARACTERS_MAX and _SAFE.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    kept = _UNSAFE_CHARACTER.sub("", text).lstrip(".-")[:_KEPT_CHARACTERS]
    return f"{kept}~{digest}"


def is_directory_name(name: object) -> bool:
    """True if `directory_name` may have returned the name: one part of a path, and no link up."""
    return (
        isinstance(name, str)
        and len(name) <= NAME_CHARACTERS_MAX
        and (_SAFE.fullmatch(name) or _WITH_DIGEST.fullmatch(name)) is not None
    )


def run_path(staging_path: Path, app_id: str, run_id: str) -> Path:
    """Return the directory of a run."""
    return staging_path / directory_name(app_id, "app_id") / directory_name(run_id, "run_id")


def attempt_path(staging_path: Path, app_id: str, run_id: str, attempt: str) -> Path:
    """Return the directory of a run's attempt."""
    return run_path(staging_path, app_id, run_id) / directory_name(attempt, "attempt")


def new_run_id(generation: int) -> str:
    """Return a name for a registered run, with its generation in it."""
    return f"run-{generation:010d}-{os.urandom(8).hex()}"


def run_generation(run_id: str) -> int | None:
    """Return the generation in a registered run's name; None for a name of the caller's."""
    found = _RUN.fullmatch(run_id)
    return None if found is None else int(found[1])


def staged_file_name(topic: str, partition: int, number: int) -> str:
    """Return the name of an attempt's file for a partition; `number` counts its files from 0."""
    return f"{topic}-{partition}.{number}.batches"


_PREFIX = "job-"
_NAME = re.compile(_PREFIX + "[0-9a-f]{32}", re.ASCII)
_PARTITION = state_partition_of(_PREFIX)


def new_nameless_job() -> str:
    """Return an application id for one job: `job-` and 32 random hexadecimal digits."""
    while True:
        name = f"{_PREFIX}{uuid.uuid4().hex}"
        if state_partition_of(name) == _PARTITION:
            return name


def is_nameless(app_id: str) -> bool:
    """True if `new_nameless_job` may have returned the application id."""
    return _NAME.fullmatch(app_id) is not None
