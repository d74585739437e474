"""The locks of a store: who has it open, who is opening or closing it; freed by death."""

import fcntl
import json
import os
import sys
import threading
import time

import pytest
from harness.crew import Member, MemberError
from harness.fork import Fork, in_child

from eoslog.errors import StoreInUseError, StoreReadOnlyError
from eoslog.session.lock import StoreLock, moment_text

LOCK = """
from eoslog.session.lock import StoreLock
from pathlib import Path
path = Path(path)
"""


@pytest.fixture
def other(tmp_path):
    with Member() as process:
        process.run(LOCK, path=str(tmp_path))
        yield process


def opened(path):
    lock = StoreLock(path)
    lock.opened(share=True)
    return lock


def test_the_first_is_alone_and_names_itself(tmp_path):
    lock = StoreLock(tmp_path)
    assert (lock.held, lock.alone) == (True, True)
    for name in ("lock", "opening.lock"):
        holder = json.loads((tmp_path / name).read_text())
        assert holder["pid"] == os.getpid()
        assert abs(holder["opened_ms"] - time.time() * 1000) < 60_000
    lock.release()
    lock.release()
    assert not lock.held
    assert (tmp_path / "lock").read_text() == ""
    StoreLock(tmp_path).release()


def test_a_process_has_a_store_open_once(tmp_path):
    lock = opened(tmp_path)
    with pytest.raises(StoreInUseError, match=rf"process {os.getpid()} \(this process\) on .* UTC"):
        StoreLock(tmp_path)
    # By whatever path.
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StoreInUseError, match=r"\(this process\)"):
        StoreLock(tmp_path / "link")
    # The refusal took nothing away.
    assert lock.begin_closing()
    lock.release()
    StoreLock(tmp_path).release()


def test_others_join_once_it_is_open_and_the_last_one_is_told(tmp_path, other):
    lock = opened(tmp_path)
    other.run("lock = StoreLock(path)")
    assert other.value("lock.alone") is False
    other.run("lock.opened(share=True)")
    assert lock.begin_closing() is False
    lock.release()
    assert other.value("lock.begin_closing()") is True
    other.run("lock.release()")


def test_one_that_is_told_it_is_not_the_last_still_counts(tmp_path, other):
    lock = opened(tmp_path)
    other.run("lock = StoreLock(path); lock.opened(share=True)")
    assert other.value("lock.begin_closing()") is False
    other.begin("lock.release()")
    other.answer()
    other.run("lock = StoreLock(path)")
    assert other.value("lock.alone") is False
    other.run("lock.opened(share=True)")
    assert lock.begin_closing() is False
    lock.release()


def test_who_comes_while_it_is_being_opened_waits(tmp_path, other):
    lock = StoreLock(tmp_path)
    other.begin("lock = StoreLock(path)")
    time.sleep(0.1)
    lock.opened(share=True)
    other.answer()
    assert other.value("lock.alone") is False
    assert lock.alone is False


def test_who_comes_while_it_is_being_closed_is_the_first_again(tmp_path, other):
    lock = opened(tmp_path)
    assert lock.begin_closing()
    other.begin("lock = StoreLock(path)")
    time.sleep(0.1)
    lock.release()
    other.answer()
    assert other.value("lock.alone") is True


def test_an_opening_that_takes_too_long_is_named(tmp_path, other):
    other.run("lock = StoreLock(path)")
    with pytest.raises(StoreInUseError, match=rf"being opened or closed by process {other.pid} on"):
        StoreLock(tmp_path, timeout_s=0.05)
    other.run("lock.opened(share=True)")
    lock = StoreLock(tmp_path, timeout_s=0.05)
    lock.opened(share=True)
    other.run("lock.begin_closing()")
    with pytest.raises(StoreInUseError, match=rf"closing {tmp_path.parent}: .*process {other.pid}"):
        lock.begin_closing()
    other.run("lock.release()")
    assert lock.begin_closing() is True
    lock.release()


def test_without_joining_a_second_process_is_kept_out(tmp_path, other):
    other.run("lock = StoreLock(path); lock.opened(share=False)")
    for joining in (True, False):
        with pytest.raises(StoreInUseError, match=f"process {other.pid} on"):
            StoreLock(tmp_path, joining=joining)
    other.kill()
    lock = StoreLock(tmp_path, joining=False)
    lock.opened(share=False)
    assert lock.alone
    assert lock.begin_closing()
    lock.release()


@pytest.mark.parametrize("moment", ["opening", "open", "closing"])
def test_death_frees_everything(tmp_path, other, moment):
    other.run("lock = StoreLock(path)")
    if moment != "opening":
        other.run("lock.opened(share=True)")
    if moment == "closing":
        other.run("lock.begin_closing()")
    other.kill()
    lock = StoreLock(tmp_path, timeout_s=1)
    assert lock.alone
    lock.release()


def test_the_death_of_the_first_leaves_the_session_to_those_who_joined(tmp_path, other):
    other.run("lock = StoreLock(path); lock.opened(share=True)")
    lock = opened(tmp_path)
    other.kill()
    assert lock.begin_closing()
    lock.release()


def test_a_file_that_names_nobody_can_be_taken_and_described(tmp_path, other):
    (tmp_path / "lock").write_text("not json")
    other.run("lock = StoreLock(path); lock.opened(share=False)")
    for text in ("{}", '{"pid": "x"}', "[]", ""):
        (tmp_path / "lock").write_text(text)
        with pytest.raises(StoreInUseError, match="has not yet said who it is"):
            StoreLock(tmp_path)


def test_a_lock_that_nobody_holds_any_more_is_free(tmp_path):
    lock = StoreLock(tmp_path)
    del lock
    StoreLock(tmp_path).release()


def test_a_fork_leaves_the_locks_to_the_parent(tmp_path, other):
    told = []
    lock = StoreLock(tmp_path, on_fork=lambda: told.append(os.getpid()))

    def live_on(fork):
        fork.say((told == [os.getpid()], lock.held))
        fork.wait()

    child = Fork(live_on)
    assert child.hear() == (True, False)
    assert told == []
    with pytest.raises(MemberError, match="being opened or closed"):
        other.run("StoreLock(path, timeout_s=0.05)")
    # The child lives on, and holds nothing.
    lock.release()
    other.run("lock = StoreLock(path, timeout_s=1)")
    assert other.value("lock.alone")
    child.tell()
    child.end()


def test_the_child_of_a_fork_may_join(tmp_path):
    lock = opened(tmp_path)

    def join():
        own = StoreLock(tmp_path, timeout_s=1)
        own.opened(share=True)
        return own.alone, own.begin_closing()

    assert in_child(join) == (False, False)
    assert lock.begin_closing()
    lock.release()


def test_threads_that_open_stores_of_their_own_do_not_disturb_each_other(tmp_path):
    """Each looks at all that are held while others come and go."""
    errors = []

    def open_many(number):
        path = tmp_path / str(number)
        path.mkdir()
        for _ in range(200):
            try:
                opened(path).release()
            except Exception as error:
                errors.append(error)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=open_many, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert errors == []


def test_threads_that_open_at_once_are_kept_apart(tmp_path):
    outcomes = []

    def open_it():
        try:
            lock = opened(tmp_path)
        except StoreInUseError:
            outcomes.append("refused")
        else:
            outcomes.append(lock)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("refused") == 7


def test_a_lock_file_that_cannot_be_opened_has_a_named_error(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("eoslog.session.lock.UnforkedFile", refuse)
        with pytest.raises(StoreReadOnlyError, match="locking"):
            StoreLock(tmp_path)
    StoreLock(tmp_path).release()


def test_the_files_are_locked_as_the_page_says(tmp_path):
    lock = StoreLock(tmp_path)

    def locked(name):
        with (tmp_path / name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return "exclusive"
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return "shared"
            return "free"

    assert (locked("lock"), locked("opening.lock")) == ("exclusive", "exclusive")
    lock.opened(share=True)
    assert (locked("lock"), locked("opening.lock")) == ("shared", "free")
    lock.release()
    assert (locked("lock"), locked("opening.lock")) == ("free", "free")


@pytest.mark.parametrize("moment_ms", [0, -1, 2**53, 2**63 - 1, -(2**63)])
def test_any_moment_has_a_text(moment_ms):
    assert moment_text(moment_ms)


def test_moments_are_utc_to_the_millisecond():
    assert moment_text(1_700_000_000_007) == "2023-11-14 22:13:20.007 UTC"
