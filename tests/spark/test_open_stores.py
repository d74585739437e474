"""One open store for each process and directory: lent, kept for the next, closed when idle."""

import os
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack

import pytest

import eoslog
from eoslog.errors import StagedCommitError, StoreInUseError
from eoslog.spark import open_stores
from eoslog.spark.open_stores import close_unused_stores, lent_store

WAIT_S = 120


@pytest.fixture(autouse=True)
def stores_of_their_own(monkeypatch, tmp_path):
    """What a test leaves open is closed, and no other test's stores are seen."""
    made = open_stores.OpenStores()
    monkeypatch.setattr(open_stores, "_stores", made)
    # Not between two lines of a test, however long they take.
    monkeypatch.setattr(open_stores, "IDLE_S", 3600.0)
    yield
    for lent in list(made.lent.values()):
        lent.store.close()


def wait_until_closed(store):
    end_s = time.monotonic() + WAIT_S
    while not store.closed:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_store_stays_open_from_one_use_to_the_next(store_path):
    with lent_store(store_path) as first:
        pass
    with lent_store(str(store_path)) as second, lent_store(store_path) as third:
        assert first is second is third
        assert not first.closed


def test_an_idle_store_is_closed_and_opened_anew(store_path, monkeypatch):
    monkeypatch.setattr(open_stores, "IDLE_S", 0.05)
    with lent_store(store_path) as first:
        time.sleep(0.2)
        assert not first.closed
    wait_until_closed(first)
    with lent_store(store_path) as second:
        assert second is not first
        assert "orders" in second.topics()
    wait_until_closed(second)


def test_stores_of_two_paths(store_path, tmp_path):
    eoslog.open(tmp_path / "other", create=True).close()
    with lent_store(store_path) as first, lent_store(tmp_path / "other") as second:
        assert first.path != second.path


@pytest.fixture
def other_paths(store_path, tmp_path, monkeypatch):
    """Other texts that lead to the same directory."""
    (tmp_path / "link").symlink_to(store_path)
    (tmp_path / "link of a link").symlink_to("link")
    (tmp_path / "parent").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    return [
        tmp_path / "link",
        tmp_path / "link of a link",
        tmp_path / "parent" / "store",
        tmp_path / "parent" / ".." / tmp_path.name / "link",
        f"{store_path}/",
        f"{store_path}//.",
        "store",
        "./link/",
        "../" + tmp_path.name + "/store",
    ]


def test_every_path_of_a_store_leads_to_one_object(store_path, other_paths):
    with ExitStack() as loans:
        found = [loans.enter_context(lent_store(path)) for path in [store_path, *other_paths]]
    assert len(set(map(id, found))) == 1
    with lent_store(other_paths[0]) as again:
        assert again is found[0]
        with pytest.raises(StoreInUseError, match="this process"):
            eoslog.open(store_path)


def test_a_mount_of_a_store_leads_to_the_same_object(store_path, tmp_path):
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "--bind", store_path, mounted], check=False).returncode
    ):
        pytest.skip("nothing can be mounted here")
    try:
        with lent_store(store_path) as first, lent_store(mounted) as second:
            assert first is second
        close_unused_stores()
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_a_link_that_leads_elsewhere_now_leads_to_another_store(store_path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(store_path)
    eoslog.open(tmp_path / "other", create=True).close()
    with lent_store(link) as first:
        link.unlink()
        link.symlink_to(tmp_path / "other")
        with lent_store(link) as second, lent_store(store_path) as same:
            assert second.topics() == {}
            assert same is first
            assert "orders" in same.topics()


def test_a_store_that_was_moved_is_found_at_its_new_place(store_path, tmp_path):
    with lent_store(store_path) as first:
        pass
    store_path.rename(tmp_path / "moved")
    with lent_store(tmp_path / "moved") as second:
        assert first.closed
        assert "orders" in second.topics()


def test_a_store_that_was_closed_behind_ones_back_is_opened_anew(store_path):
    with lent_store(store_path) as first:
        first.close()
    with lent_store(store_path) as second:
        assert second.topics()


def test_a_store_that_another_one_has_taken_the_place_of_is_opened_anew(tmp_path):
    path = tmp_path / "store"
    eoslog.open(path, create=True).close()
    with lent_store(path) as first:
        first.create_topic("old")
    path.rename(tmp_path / "away")
    eoslog.open(path, create=True).close()
    with lent_store(path) as second:
        assert second.topics() == {}
        second.create_topic("new")
    assert first.closed
    with eoslog.open(tmp_path / "away") as away:
        assert list(away.topics()) == ["old"]


def test_an_error_closes_the_store(store_path):
    with pytest.raises(RuntimeError), lent_store(store_path) as first:
        raise RuntimeError("whatever")
    assert first.closed
    with lent_store(store_path) as second:
        assert second.topics()


@pytest.mark.parametrize("error", [ValueError("options"), GeneratorExit(), StagedCommitError("x")])
def test_errors_that_say_nothing_of_the_store_leave_it_open(store_path, error):
    with pytest.raises(type(error)), lent_store(store_path) as store:
        raise error
    assert not store.closed


def test_a_store_in_use_is_closed_after_its_last_user(store_path):
    with lent_store(store_path) as first:
        with pytest.raises(RuntimeError), lent_store(store_path):
            raise RuntimeError("whatever")
        with lent_store(store_path) as still_the_same:
            assert still_the_same is first
            assert not first.closed
    assert first.closed


def test_what_nobody_uses_can_be_closed_at_once(store_path, tmp_path):
    eoslog.open(tmp_path / "other", create=True).close()
    with lent_store(store_path) as unused:
        pass
    with lent_store(tmp_path / "other") as used:
        close_unused_stores()
        assert (unused.closed, used.closed) == (True, False)


def test_a_store_of_another_durability_is_opened_anew_once_it_is_free(store_path):
    with lent_store(store_path, "process") as first, lent_store(store_path) as same:
        assert same is first
        with pytest.raises(StoreInUseError), lent_store(store_path, "commit"):
            pass
    with lent_store(store_path, "commit") as second:
        assert (first.closed, second.durability) == (True, "commit")


def test_threads_share_one_store(store_path):
    together = threading.Barrier(4)
    found = []

    def use():
        with lent_store(store_path) as store:
            together.wait(WAIT_S)
            found.append(store)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_a_forked_child_opens_its_own(store_path):
    with lent_store(store_path) as store:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with lent_store(store_path) as own:
                    fresh = own is not store and len(own.processes()) == 2
                    status = 0 if fresh and "orders" in own.topics() else 2
                own.close()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not store.closed


def test_no_store_no_loan(tmp_path):
    with pytest.raises(eoslog.errors.NotAStoreError), lent_store(tmp_path):
        pass
    with pytest.raises(eoslog.errors.NotAStoreError), lent_store(tmp_path):
        pass
