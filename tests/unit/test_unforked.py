"""Descriptors that a child of a fork does not keep, at whatever moment it is forked."""

import fcntl
import os
import signal
import threading

import pytest

from eoslog.unforked import close_unforked, is_open, open_unforked


def test_a_child_has_none_of_them(tmp_path):
    descriptor = open_unforked(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert is_open(descriptor)
    assert not os.get_inheritable(descriptor)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.fstat(descriptor)
            answer = b"open"
        except OSError:
            answer = b"%d" % is_open(descriptor)
        # Closed already: nothing is closed in its place.
        other = os.open("/dev/null", os.O_RDONLY)
        close_unforked(descriptor)
        os.fstat(other)
        again = open_unforked(tmp_path / "own", os.O_RDWR | os.O_CREAT)
        os.write(writer, answer + b"%d" % is_open(again))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 9) == b"01"
    os.fstat(descriptor)
    close_unforked(descriptor)
    close_unforked(descriptor)
    assert not is_open(descriptor)
    for one in (reader, writer):
        os.close(one)


def test_what_cannot_be_opened_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_unforked(tmp_path / "gone", os.O_RDWR)


def test_no_fork_keeps_a_lock_whatever_other_threads_open(tmp_path):
    done = threading.Event()
    path = tmp_path / "file"

    def lock_and_free():
        while not done.is_set():
            descriptor = open_unforked(path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Not freed aloud: a copy in a child would keep it.
            close_unforked(descriptor)

    threads = [threading.Thread(target=lock_and_free) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = []
    try:
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    finally:
        done.set()
        # Those that wait for a lock that a child keeps would wait for ever.
        for thread in threads:
            thread.join(timeout=30)
        stuck = [thread for thread in threads if thread.is_alive()]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert not stuck
