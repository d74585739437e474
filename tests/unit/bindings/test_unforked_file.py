"""Descriptors that a child of a fork does not keep, at whatever moment it is forked."""

import fcntl
import os
import signal
import threading

import pytest
from file_locks import is_free
from harness.fork import Fork, in_child

from eoslog.bindings.unforked_file import UnforkedFile

FLAGS, MODE = os.O_RDWR | os.O_CREAT, 0o600


def test_a_child_has_none_of_them(tmp_path):
    file = UnforkedFile(tmp_path / "file", FLAGS, MODE)
    descriptor = file.fileno()
    assert not file.closed
    assert not os.get_inheritable(descriptor)

    def look():
        with pytest.raises(OSError):
            os.fstat(descriptor)
        # Closed already: nothing is closed in its place.
        other = os.open("/dev/null", os.O_RDONLY)
        file.close()
        os.fstat(other)
        return file.closed, UnforkedFile(tmp_path / "own", FLAGS, MODE).closed

    assert in_child(look) == (True, False)
    os.fstat(descriptor)
    file.close()
    file.close()
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.fileno()


def test_what_cannot_be_opened_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        UnforkedFile(tmp_path / "gone", os.O_RDWR, MODE)


def test_locks_take_the_place_of_each_other(tmp_path):
    path = tmp_path / "file"
    file, other = UnforkedFile(path, FLAGS, MODE), UnforkedFile(path, FLAGS, MODE)
    assert file.lock(exclusive=True, wait=False)
    assert not other.lock(exclusive=False, wait=False)
    assert file.lock(exclusive=False, wait=False)
    assert other.lock(exclusive=False, wait=False)
    # Who asks for more in vain has nothing.
    assert not file.lock(exclusive=True, wait=False)
    assert other.lock(exclusive=True, wait=True)
    other.close()
    assert is_free(path)


def test_it_goes_with_its_object(tmp_path):
    path = tmp_path / "file"
    file = UnforkedFile(path, FLAGS, MODE)
    assert file.lock(exclusive=True, wait=True)
    assert not is_free(path)
    del file
    assert is_free(path)


def test_no_fork_keeps_a_lock_whatever_other_threads_open(tmp_path):
    done = threading.Event()
    path = tmp_path / "file"

    def lock_and_free():
        while not done.is_set():
            file = UnforkedFile(path, FLAGS, MODE)
            # Not by its own call, and so not freed aloud: a copy in a child would keep it.
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            file.close()

    threads = [threading.Thread(target=lock_and_free) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = []
    try:
        for _ in range(40):
            children.append(Fork(lambda _: signal.pause()))
    finally:
        done.set()
        # Those that wait for a lock that a child keeps would wait for ever.
        for thread in threads:
            thread.join(timeout=30)
        stuck = [thread for thread in threads if thread.is_alive()]
        for child in children:
            child.kill()
    assert not stuck
