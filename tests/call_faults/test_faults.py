"""Calls to the operating system fail: errors of eoslog, nothing lost or twice, and it goes on.

A few of all faults here, spread evenly; a soak has many.
"""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest
from call_faults import failing_calls
from harness.crew import printed_by
from partition_files import PartitionFiles
from reference_model import batch_codec as codec

from eoslog.errors import EoslogError

pytestmark = pytest.mark.crash

# For a hang only: a soak has many faults.
TIMEOUT_S = 3600
MAIN = "import call_faults.{0}; call_faults.{0}.main()"


@pytest.fixture
def inject(run):
    return lambda *given: run(MAIN.format("inject"), *given, timeout_s=TIMEOUT_S)


def test_some_faults_of_each_kind(inject):
    assert " 0 broken promises" in inject("--part", "0.0003")


def test_some_faults_of_the_commit_journal(inject):
    kinds = ("open", "reserve", "write", "sync", "rename", "unlink")
    wanted = [one for each in kinds for one in ("--kind", each)]
    assert " 0 broken promises" in inject("--journal", "--part", ".015", *wanted)


def test_some_faults_after_which_the_process_dies(inject):
    wanted = ("--dies", "--journal", "--part", "0.01", "--file", "*checkpoint*", "--kind", "write")
    assert " 0 broken promises" in inject(*wanted)
    assert " 0 broken promises" in inject("--dies", "--part", "0.0001")


def test_some_faults_beside_another_process(inject):
    assert " 0 broken promises" in inject("--beside", "--part", "0.0001")


# The first of two syncs of a log hangs until the second has failed.
SYNCS_OF_LOGS = ("--beside", "--overlap", "--kind", "sync", "--file", "*.log")


def test_some_syncs_that_another_one_of_the_same_log_fails_beside(inject):
    assert " 0 broken promises" in inject(*SYNCS_OF_LOGS, "--part", "0.006")


@pytest.mark.parametrize("with_journal", [True, False], ids=["journal", "files"])
def test_some_files_that_can_be_made_again_are_lost(with_journal):
    options = ["--journal"] if with_journal else []
    assert " 0 broken promises" in printed_by(MAIN.format("lost_files"), "--part", "0.03", *options)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "options",
    [("--dies",), ("--dies", "--journal"), ("--beside",), ("--beside", "--dies")],
    ids=" ".join,
)
def test_many_faults_of_one_process_or_beside_another(inject, options):
    assert " 0 broken promises" in inject(*options, "--part", "0.02")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_syncs_that_another_one_of_the_same_log_fails_beside(inject):
    assert " 0 broken promises" in inject(*SYNCS_OF_LOGS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("with_journal", [True, False], ids=["journal", "files"])
def test_each_file_that_can_be_made_again_is_lost(with_journal):
    options = ["--journal"] if with_journal else []
    said = printed_by(MAIN.format("lost_files"), *options, timeout_s=TIMEOUT_S)
    assert " 0 broken promises" in said


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["open", "write", "sync", "change", "the others"])
def test_many_faults(inject, kind):
    others = ["map", "truncate", "reserve", "rename", "link", "unlink", "make_folder", "memory"]
    kinds = others if kind == "the others" else [kind]
    part = {"open": "0.05", "the others": "0.5"}.get(kind, "0.3")
    wanted = [one for each in kinds for one in ("--kind", each)]
    assert " 0 broken promises" in inject("--part", part, *wanted)


OF_THIS = "from call_faults import test_faults; test_faults.main(*given)"


@pytest.mark.parametrize("kind", ["map", "open"])
def test_a_roll_that_fails_leaves_no_file(tmp_path, run, kind):
    """The next opening would take a file of zeros for a segment that was damaged."""
    said = run(OF_THIS, tmp_path / "log", kind)
    assert said.split() == ["refused", "whole"]


def test_a_sync_that_fails_leaves_what_was_appended_unknown_whatever_the_errno(tmp_path, run):
    """A disk that became read-only says EROFS; what was appended may be on it all the same."""
    said = run(OF_THIS, tmp_path / "log", "sync")
    assert set(said.split()) == {"unknown"}


def fail_syncs(root: Path) -> None:
    errors = (errno.EIO, errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.ENOENT)
    for error, in_pieces in itertools.product(errors, (False, True)):
        files = PartitionFiles(root / f"{error}-{in_pieces}")
        log = files.open()
        log.append_batch(codec.simple_batch([b"first"]))
        failing_calls.arm(files.directory, "sync", 1, error, again=False)
        try:
            log.sync_up_to(log.log_end_offset, in_pieces)
        except EoslogError as refused:
            print(refused.outcome)
        assert failing_calls.disarm()[1:] == (1, None), "it failed, and was not made again"
        try:
            log.append_batch(codec.simple_batch([b"second"]))
        except EoslogError as refused:
            print(refused.outcome)


def test_a_sync_in_pieces_gives_each_to_the_disk_once_and_needs_none(tmp_path, run):
    said = run(OF_THIS, tmp_path / "log", "pieces")
    # Three pieces; then the last of these, which was not whole, and one more.
    assert said.split() == ["3", "2", "0"]


def sync_in_pieces(root: Path) -> None:
    files = PartitionFiles(root)
    log = files.open()
    log.append_batch(codec.simple_batch([b"first"]))
    log.flush()  # The name too.
    for count in (3, 1, 0):
        for _ in range(count):
            log.append_batch(codec.simple_batch([bytes(100_000)]))
        failing_calls.arm(files.directory, "begin", 1, errno.EIO, again=True)
        log.sync_up_to(log.log_end_offset, True)
        assert log.recovery_point == log.log_end_offset
        print(failing_calls.disarm()[0])


def main(root: str, kind: str) -> None:
    if kind == "sync":
        fail_syncs(Path(root))
    elif kind == "pieces":
        sync_in_pieces(Path(root))
    else:
        fail_a_roll(root, kind)


def fail_a_roll(root: str, kind: str) -> None:
    """With the library preloaded: a roll for which there is no map, a clean close, an opening."""
    files = PartitionFiles(Path(root), {"eoslog.spare.segments": 1})
    log = files.open()
    log.append_batch(codec.simple_batch([b"first"]))
    log.prepare_spare(1)
    failing_calls.arm(files.directory, kind, 1, errno.ENOMEM, again=False)
    try:
        log.roll()
    except (EoslogError, MemoryError):
        print("refused")
    failing_calls.disarm()
    log.append_batch(codec.simple_batch([b"second"]))
    files.close(clean=True)
    log = files.open(clean=True)
    assert log.log_end_offset == 2
    assert log.verify() == []
    assert files.names(".log") == [0]
    print("whole")
