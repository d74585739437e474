"""Sessions: the first takes a store up, others join, the last lays it down; who may not join."""

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from harness.crew import Member, MemberError
from store_copies import copy_store

import eoslog
from eoslog.bindings.shared_page import SharedPage
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StoreFailedError, StoreInUseError
from eoslog.fs.file_system import Mount
from eoslog.session import directory as store_directory
from eoslog.session import store_session
from eoslog.session.paths import StorePaths
from eoslog.session.settings import StoreSettings
from eoslog.session.store_session import SessionFile, StoreSession

NFS = Mount("nfs4", "server:/export", "/mnt")
ENTER = """
from pathlib import Path
from eoslog.session.directory import enter_store
from eoslog.session.paths import StorePaths
from eoslog.session.settings import StoreSettings
paths = StorePaths(Path(path))
def enter(durability="commit", **defaults):
    config = {f"log.{name}": value for name, value in defaults.items()}
    return enter_store(paths, True, durability, config, StoreSettings(), lambda: None)[0]
"""


@pytest.fixture
def paths(tmp_path):
    return StorePaths(tmp_path / "store")


@pytest.fixture
def other(paths):
    with Member() as process:
        process.run(ENTER, path=str(paths.root))
        yield process


def enter(paths, durability="commit", **defaults) -> StoreSession:
    config = {f"log.{name.replace('_', '.')}": value for name, value in defaults.items()}
    return store_directory.enter_store(
        paths, True, durability, config, StoreSettings(), lambda: None
    )[0]


def left(session):
    """Close as a store does; whether it was the last."""
    last = session.begin_leaving()
    session.leave(last=last)
    return last


# Coming and going.


@pytest.mark.parametrize("name", ["store", "meta.properties", "shared", "lock"])
def test_a_file_that_cannot_be_looked_at_is_named(paths, monkeypatch, name):
    def refuse(path):
        if path.name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return identity(path)

    identity = store_session._identity
    with monkeypatch.context() as patched:
        patched.setattr(store_session, "_identity", refuse)
        with pytest.raises(StoreFailedError, match=rf"Input/output error.*/{name}$|/{name}: Input"):
            enter(paths)
    enter(paths).abandon()


def test_the_first_begins_a_session_and_the_last_ends_it(paths):
    session = enter(paths)
    assert session.first
    assert len(session.id) == 16
    assert SharedPage.read_session(str(paths.shared)) == session.id
    session.opened([TopicPartition("t", 1)])
    said = json.loads(paths.session.read_text())
    assert said["session"] == session.id.hex()
    assert (said["pid"], said["durability"]) == (os.getpid(), "commit")
    assert said["unrecovered"] == ["t-1"]
    assert left(session)
    assert not paths.session.exists()
    assert list((paths.state / "processes").iterdir()) == []
    again = enter(paths)
    assert again.first
    assert again.id != session.id
    again.abandon()


def test_those_who_join_know_what_the_first_said(paths, other):
    session = enter(paths, "process", segment_bytes=4096)
    session.opened([TopicPartition("a-b", 1), TopicPartition("t", 0)])
    other.run("s = enter('process'); s.opened([])")
    assert other.value("[s.first, s.durability, s.topic_defaults, s.id.hex()]") == [
        False,
        "process",
        {"segment.bytes": 4096},
        session.id.hex(),
    ]
    assert other.value("sorted(map(str, s.unrecovered))") == ["a-b-1", "t-0"]
    assert not left(session)
    assert other.value("[s.begin_leaving(), s.was_shared]") == [True, True]
    other.run("s.leave(last=True)")
    assert not paths.session.exists()


def test_all_see_one_page(paths, other):
    session = enter(paths)
    session.opened([])
    other.run("s = enter(); s.opened([])")
    session.shared.raise_counter(0)
    assert other.value("s.shared.counter(0)") == 1
    assert other.value("[one.process_id for one in s.slots.others()]") == [os.getpid()]
    assert [one.process_id for one in session.slots.others()] == [other.pid]
    session.abandon()


def test_one_process_alone_was_not_shared(paths):
    session = enter(paths)
    session.opened([])
    assert session.begin_leaving()
    assert not session.was_shared
    session.leave(last=True)


@pytest.mark.parametrize("lost", ["gone", "empty", "of another session"])
def test_the_last_one_closes_nothing_without_the_file_of_the_session(paths, other, lost):
    """It has what others opened, and left unrecovered: all is recovered by the next opening."""
    session = enter(paths)
    session.opened([])
    other.run("s = enter(); s.opened([]); s.begin_leaving(); s.leave(last=False)")
    assert session.was_shared
    if lost == "gone":
        paths.session.unlink()
    elif lost == "empty":
        paths.session.write_bytes(b"")
    else:
        paths.session.write_text(paths.session.read_text().replace(session.id.hex(), "0" * 32))
    with pytest.raises(StoreFailedError, match=r"session\.json is gone, or of another session"):
        session.begin_leaving()
    session.abandon()


def test_what_one_could_not_put_right_is_told_to_the_last(paths, other):
    session = enter(paths)
    session.opened([])
    other.run("from eoslog import TopicPartition\ns = enter(); s.opened([]); s.begin_leaving()")
    other.run("s.leave_behind([TopicPartition('t', 3), TopicPartition('t', 1)])")
    other.run("s.leave_behind([TopicPartition('t', 3)])\ns.leave(last=False)")
    assert session.begin_leaving()
    assert session.left == {TopicPartition("t", 1), TopicPartition("t", 3)}
    session.leave(last=True)


def test_when_all_have_died_the_next_is_a_first(paths, other):
    other.run("s = enter(); s.opened([])")
    with Member() as third:
        third.run(ENTER, path=str(paths.root))
        third.run("s = enter(); s.opened([])")
        old = third.value("s.id.hex()")
        other.kill()
        # One of the session lives: it goes on.
        session = enter(paths)
        assert not session.first
        session.opened([])
        assert [one.process_id for one in session.slots.dead()] == [other.pid]
        session.abandon()
        third.kill()
    session = enter(paths)
    assert session.first
    assert session.id.hex() != old
    session.opened([])
    assert session.slots.dead() == []
    session.abandon()


def test_a_process_that_dies_while_it_opens_leaves_nothing(paths, other):
    other.run("s = enter()")
    other.kill()
    session = enter(paths)
    assert session.first
    session.abandon()


# Who may not join.


def test_another_durability_is_refused_and_explained(paths, other):
    session = enter(paths, "process")
    session.opened([])
    with pytest.raises(MemberError) as caught:
        other.run("enter('always')")
    assert caught.value.kind == "StoreInUseError"
    for part in ("'process'", "'always'", f"process {os.getpid()} on", "durability='process'"):
        assert part in caught.value.text
    # Whoever leaves it open takes what there is.
    other.run("s = enter(None); s.opened([])")
    assert other.value("s.durability") == "process"
    session.abandon()


def test_without_a_durability_the_first_has_commit(paths):
    session = enter(paths, None)
    assert session.durability == "commit"
    session.abandon()


def test_who_asks_first_decides_however_late_he_comes(paths, other):
    guest = enter(paths, None)
    guest.opened([])
    other.run("s = enter('process', **{'segment.bytes': 4096}); s.opened([])")
    assert other.value("s.durability") == "process"
    guest.look()
    # What it appends is as durable as it was; topics are as whoever asked wants them.
    assert guest.durability == "commit"
    assert guest.topic_defaults == {"segment.bytes": 4096}
    with Member() as third:
        third.run(ENTER, path=str(paths.root))
        with pytest.raises(MemberError, match=r"'process', by process \d+ .* 'commit'"):
            third.run("enter('commit')")
        third.run("s = enter(None); s.opened([])")
        assert third.value("s.durability") == "process"
        assert third.value("s.topic_defaults") == {"segment.bytes": 4096}
    guest.abandon()


def test_other_settings_of_topics_are_refused(paths, other):
    session = enter(paths, segment_bytes=4096)
    session.opened([])
    with pytest.raises(MemberError, match=r"segment\.bytes=4096 .* not with 8192"):
        other.run("enter(**{'segment.bytes': 8192})")
    with pytest.raises(MemberError, match=r"retention\.ms=-1 .* not with 5"):
        other.run("enter(**{'retention.ms': 5})")
    other.run("s = enter(**{'segment.bytes': 4096, 'retention.ms': -1}); s.opened([])")
    session.abandon()


def test_a_process_under_another_kernel_is_refused(paths, other):
    session = enter(paths)
    session.opened([])
    other.run("from eoslog.session import store_session\nstore_session.boot_id = lambda: 'another'")
    with pytest.raises(MemberError, match=r"open on another host: by process \d+ on") as it:
        other.run("enter()")
    assert it.value.kind == "StoreInUseError"
    assert left(session)


def test_a_process_whose_number_is_of_another_row_is_refused(paths, other):
    session = enter(paths)
    session.opened([])
    other.run("from eoslog.session import store_session")
    other.run("store_session.process_namespace = lambda: 'other'")
    with pytest.raises(MemberError, match=r"in another container: by process") as it:
        other.run("enter()")
    assert it.value.kind == "StoreInUseError"
    assert left(session)


def test_without_the_gate_one_process_has_it(paths, other, monkeypatch):
    monkeypatch.setattr(store_session, "JOINING", False)
    session = enter(paths)
    session.opened([])
    with pytest.raises(MemberError, match=f"open already.*process {os.getpid()} on"):
        other.run("enter()")
    assert left(session)


@pytest.mark.parametrize("name", ["session.json", "shared"])
@pytest.mark.parametrize("harm", ["gone", "empty", "foreign"])
def test_a_session_whose_files_are_gone_cannot_be_joined(paths, other, name, harm):
    session = enter(paths)
    session.opened([])
    path = paths.state / name
    foreign = path.read_bytes().replace(session.id, bytes(16))
    foreign = foreign.replace(session.id.hex().encode(), b"00" * 16)
    path.unlink()
    if harm != "gone":
        path.write_bytes(b"" if harm == "empty" else foreign)
    with pytest.raises(MemberError, match="removed or replaced") as caught:
        other.run("enter()")
    assert caught.value.kind == "StoreFailedError"
    session.abandon()
    # Once nobody has it open, all is made anew.
    other.run("s = enter()")
    assert other.value("s.first")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'{"version": 2}',
        b'{"version": 1}',
        b'{"version": 1, "unrecovered": [], "left": [], "more": 1}',
    ],
)
def test_a_strange_session_file_says_nothing(tmp_path, content):
    (tmp_path / "session.json").write_bytes(content)
    assert SessionFile.read(tmp_path / "session.json") is None


def test_a_session_file_reads_back(tmp_path):
    written = SessionFile(
        "ab", 1, "h", "b", "n", 2, "always", {"segment.bytes": 3}, ("t-0",), ("u-1",), 4
    )
    written.write(tmp_path / "session.json")
    assert SessionFile.read(tmp_path / "session.json") == written


# File systems of several hosts.


@pytest.fixture
def on_nfs(monkeypatch):
    monkeypatch.setattr(store_directory, "mount_of", lambda path: NFS)


@pytest.mark.usefixtures("on_nfs")
def test_on_a_network_file_system_one_process_has_it(paths, other):
    session = enter(paths)
    session.opened([])
    with pytest.raises(MemberError, match=f"alone: by process {os.getpid()} on"):
        other.run("enter()")
    other.run(
        "from eoslog.session import directory\nfrom eoslog.fs.file_system import Mount\n"
        "directory.mount_of = lambda path: Mount('nfs4', 'server:/export', '/mnt')\n"
        "def refused():\n"
        "    try: enter()\n"
        "    except errors.StoreInUseError as error: return [str(error), *error.__notes__]\n"
    )
    text, note = other.value("refused()")
    assert f"process {os.getpid()} on" in text
    assert note == (
        "on nfs4 (server:/export, mounted at /mnt) one process at a time has a store open"
    )
    assert left(session)


@pytest.mark.usefixtures("on_nfs")
def test_a_sign_of_life_keeps_hosts_apart_whose_locks_do_not_reach(paths, monkeypatch):
    session = enter(paths)
    session.opened([])
    session.look()
    # The lock of another host is not seen here.
    session.abandon()
    monkeypatch.setattr(store_session, "boot_id", lambda: "another")
    with pytest.raises(StoreInUseError, match=r"open on another host.* after 30 s it counts as"):
        enter(paths)
    old_s = time.time() - 31
    os.utime(paths.session, (old_s, old_s))
    second = enter(paths)
    assert second.first
    second.opened([])
    # The one that was taken for dead comes back, and is told.
    with pytest.raises(StoreFailedError, match=r"was replaced while it was open: .*shared"):
        session.look()
    second.look()
    assert left(second)


@pytest.mark.usefixtures("on_nfs")
def test_a_sign_of_life_is_given_again_and_again(paths, monkeypatch):
    session = enter(paths)
    session.opened([])
    session.look()
    monkeypatch.setattr(store_session, "SIGN_OF_LIFE_EVERY_S", 0.0)
    os.utime(paths.session, (0, 0))
    session.look()
    assert time.time() - paths.session.stat().st_mtime < 30
    monkeypatch.setattr(store_session, "SIGN_OF_LIFE_EVERY_S", 3600.0)
    os.utime(paths.session, (0, 0))
    session.look()
    assert paths.session.stat().st_mtime == 0
    # Taken over, though its own files look as they did.
    SessionFile("ab", 1, "far", "b", "n", 2, "commit", {}).write(paths.session)
    monkeypatch.setattr(store_session, "SIGN_OF_LIFE_EVERY_S", 0.0)
    for _ in range(2):
        with pytest.raises(StoreFailedError, match="was taken over, by process 1 on far"):
            session.look()
    session.abandon()


@pytest.mark.usefixtures("on_nfs")
def test_a_clean_close_lets_another_host_come_at_once(paths, monkeypatch):
    session = enter(paths)
    session.opened([])
    assert left(session)
    monkeypatch.setattr(store_session, "boot_id", lambda: "another")
    second = enter(paths)
    second.abandon()


# Files that are replaced.


def test_an_untouched_store_is_itself(paths):
    session = enter(paths)
    session.opened([])
    session.look()
    session.abandon()


@pytest.mark.parametrize("name", ["", "meta.properties", "state/shared", "state/lock"])
@pytest.mark.parametrize("harm", ["gone", "other"])
def test_replaced_files_are_noticed_and_named(paths, name, harm):
    session = enter(paths)
    session.opened([])
    path = paths.root / name
    path.rename(paths.root.parent / "away")
    if harm == "other":
        away = paths.root.parent / "away"
        if away.is_dir():
            copy_store(away, path)
        else:
            shutil.copy(away, path)
    said = "is gone" if harm == "gone" else "is another file now"
    for _ in range(2):
        with pytest.raises(StoreFailedError, match="was replaced while it was open") as caught:
            session.check()
        assert said in str(caught.value)
    # Nothing of the new files is touched.
    before = sorted(map(str, paths.root.rglob("*")))
    session.leave(last=True)
    assert sorted(map(str, paths.root.rglob("*"))) == before


def test_what_is_told_again_and_again_does_not_grow(paths):
    """The background thread looks for as long as the store is open."""
    session = enter(paths)
    session.opened([])
    (paths.root / "state" / "shared").unlink()
    entries = []
    for _ in range(4):
        with pytest.raises(StoreFailedError) as caught:
            session.check()
        entries.append(len(caught.traceback))
    assert entries[1] == entries[-1]
    session.leave(last=True)


def test_a_store_in_the_place_of_another_is_noticed(tmp_path):
    first = eoslog.open(tmp_path / "store", create=True)
    first.create_topic("t")
    first.producer().append("t", 0, [b"old"])
    Path(tmp_path / "store").rename(tmp_path / "away")
    with eoslog.open(tmp_path / "store", create=True) as second:
        second.create_topic("t")
        second.producer().append("t", 0, [b"new"])
        with pytest.raises(StoreFailedError, match="was replaced while it was open"):
            first.close()
        assert first.closed
        assert second.partition("t", 0).log_end_offset == 1
    with eoslog.open(tmp_path / "store") as second:
        assert second.verify() == []
    # What was moved away is whole as well.
    with eoslog.open(tmp_path / "away") as first:
        assert first.partition("t", 0).log_end_offset == 1
        assert first.verify() == []


def test_nothing_is_begun_in_a_store_in_the_place_of_another(tmp_path, monkeypatch):
    """Before the background looks, what would go by the store's path looks for itself."""
    monkeypatch.setattr("eoslog.store.peer_monitor.PeerMonitor.look", lambda self: None)
    path = tmp_path / "store"
    first = eoslog.open(path, create=True)
    for name in ("open", "closed"):
        first.create_topic(name)
    first.producer().append("open", 0, [b"old"])
    path.rename(tmp_path / "away")
    with eoslog.open(path, create=True) as second:
        for name in ("open", "closed"):
            second.create_topic(name)
        before = sorted(map(str, path.rglob("*")))
        for call in (
            lambda: first.create_topic("new"),
            lambda: first.delete_topic("open"),
            lambda: first.producer().append("closed", 0, [b"x"]),
            lambda: first.consumer(group="g").commit({TopicPartition("open", 0): 1}),
            lambda: first.producer(transactional_id="t").init_transactions(),
            lambda: first.commit_staged("app", 0, []),
            first.verify,
        ):
            with pytest.raises(StoreFailedError, match="was replaced while it was open"):
                call()
        assert sorted(map(str, path.rglob("*"))) == before
        with pytest.raises(StoreFailedError, match="was replaced while it was open"):
            first.close()
        assert second.verify() == []
        assert sorted(second.topics()) == ["closed", "open"]
    with eoslog.open(tmp_path / "away") as away:
        assert away.partition("open", 0).log_end_offset == 1
