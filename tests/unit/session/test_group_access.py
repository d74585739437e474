"""`eoslog.group.readable`: who may read a store's files, whatever makes them, and its change."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, call
from harness.crew import Member
from harness.fork import Fork, Kill, die, dies_in_child, in_child
from harness.waiting import eventually
from read_only_stores import everything_shown
from store_modes import READABLE, STAGED_BYTES, stage, umask, use_everything, wrong_modes

import eoslog
from eoslog.bindings.file_descriptor import FileDescriptor, make_directory
from eoslog.errors import InvalidConfigError
from eoslog.session import group_access, overlay
from eoslog.session.group_access import SETTING
from eoslog.session.paths import StorePaths
from eoslog.store.store import abandon, engine_of

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
OWNER, READER, STRANGER, GROUP, OTHER_GROUP = 20_001, 20_002, 20_003, 20_010, 20_011


WRITE = """
import eoslog
store = eoslog.open(path)
store.create_topic("others")
store.producer().append("small", 0, [bytes(900)] * 9)
"""


def killed(work: Callable[[], object]) -> None:
    """Work in a process that is killed after it."""

    def work_and_die() -> None:
        work()
        die()

    assert dies_in_child(work_and_die)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory that each user reaches, with one in it for the overlays of each."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(("readable", "mask"), [(True, 0o077), (True, 0o000), (False, 0o000)])
def test_every_file_has_the_modes_that_the_setting_says(place, mask, readable):
    """Of live processes, of killed ones, after the recovery, in a backup and a restored store."""
    path, copy, restored = (place / name for name in ("above/store", "copy", "restored"))
    config = {SETTING: readable}
    with umask(mask):
        killed(lambda: use_everything(path, config))
        assert wrong_modes(path, readable=readable) == {}
        for name in ("state/spare/small-0", "state/journal", "staging", "state/members", "t-1"):
            assert any((path / name).rglob("*")), name
        segments = [one.stat() for one in (path / "t-1").glob("*.log")]
        assert max(one.st_size for one in segments) >= STAGED_BYTES
        above = path.parent.stat().st_mode & 0o777
        assert above == (0o750 if readable else 0o700)
        with eoslog.open(path, create=True, config=config) as store, Member() as other:
            other.run(WRITE, path=str(path))
            assert store.verify() == []
            assert store.remembered.config.get(SETTING, False) == store.config[SETTING] == readable
            assert wrong_modes(path, readable=readable) == {}
            store.backup(copy)
            assert wrong_modes(copy, readable=readable) == {}
        eoslog.restore(copy, restored)
        assert wrong_modes(restored, readable=readable) == {}
        assert wrong_modes(path, readable=readable) == {}


def become(user: int, *groups: int) -> None:
    """Be another user, in this child process."""
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)


def as_user(user: int, groups: tuple[int, ...], work: Callable[[], object]) -> object:
    def do() -> object:
        become(user, *groups)
        return work()

    return in_child(do)


def error_of(work: Callable[[], object]) -> str:
    try:
        work()
    except (eoslog.errors.EoslogError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


COMMANDS = [
    ("topics", "list"),
    ("topics", "describe", "t"),
    ("groups", "list"),
    ("groups", "describe", "g"),
    ("transactions", "list"),
    ("transactions", "describe", "--transactional-id", "x"),
    ("producers", "--topic", "small", "--partition", "0"),
    ("consume", "t"),
    ("metrics",),
    ("config",),
    ("verify",),
]


def all_commands(path: Path) -> list[tuple[object, ...]]:
    """What commands that read answer, but for one that did what it should."""
    found = [(command, call(*command, EOSLOG_STORE=str(path))) for command in COMMANDS]
    return [(command, answer.stderr) for command, answer in found if answer.status != DONE]


@pytest.fixture(scope="module")
def loaded() -> None:
    """Load what commands load when they need it: another user may not be able to."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name, "store")
        abandon(use_everything(path, {}))
        all_commands(path)
        call("config", "--store", path, "--config", f"{SETTING}=true")
        call("backup", Path(name, "copy"), "--store", path)
        eoslog.restore(Path(name, "copy"), Path(name, "restored"))


@pytest.fixture
def shared_store(loaded: None, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A killed store of the user OWNER, with GROUP as its directory's group: private still."""
    memory = place / "memory"
    memory.mkdir()
    memory.chmod(0o1777)
    monkeypatch.setattr(overlay, "MEMORY", memory)
    (place / "users").mkdir()
    os.chown(place / "users", OWNER, GROUP)
    (place / "users").chmod(0o755)
    path = place / "users" / "store"

    def use() -> None:
        become(OWNER, GROUP)
        use_everything(path, {})

    killed(use)
    os.chown(path, OWNER, GROUP)
    return path


@as_root
def test_a_user_of_the_group_reads_all_and_writes_nothing(shared_store):
    path = shared_store

    def read() -> object:
        with eoslog.open(path, read_only=True) as store:
            return everything_shown(store)

    def config(*options: str) -> object:
        answer = call("config", "--store", path, *options)
        return answer.status or answer.stdout

    refused = as_user(READER, (GROUP,), lambda: error_of(read))
    assert str(refused).startswith("StoreReadOnlyError: ")
    assert f"`eoslog config --store {path} --config {SETTING}=true`" in str(refused)
    assert as_user(READER, (GROUP,), lambda: call("topics", "--store", path).status) == FAILED
    expected = read()
    assert SETTING in str(as_user(OWNER, (GROUP,), lambda: config("--config", f"{SETTING}=true")))
    assert wrong_modes(path, readable=True) == {}
    assert as_user(READER, (GROUP,), read) == expected
    assert as_user(READER, (GROUP,), lambda: all_commands(path)) == []

    def live(fork: Fork) -> None:
        become(OWNER, GROUP)
        os.umask(0o077)
        with eoslog.open(path) as store:
            store.create_topic("new")
            store.producer().append("new", 0, [b"new"])
            fork.say()
            fork.wait()

    with Fork(live) as beside:
        beside.hear()
        assert as_user(READER, (GROUP,), lambda: "new" in str(read()))
        assert as_user(READER, (GROUP,), lambda: all_commands(path)) == []
        beside.tell()
        beside.end()

    def write() -> list[str]:
        files = [one for one in path.rglob("*") if one.is_file()]
        assert not [one for one in (path, *path.rglob("*")) if os.access(one, os.W_OK)]
        for one in files:
            assert one.open("rb").read(1) is not None
        works: list[Callable[[], object]] = [
            lambda: eoslog.open(path),
            lambda: (path / "new").write_bytes(b""),
            lambda: (path / "t-0").rename(path / "t-9"),
            lambda: path.chmod(0o777),
            lambda: stage(path, "of another", 9),
        ]
        return [error_of(work).split(":")[0] for work in works]

    read_only, denied = "StoreReadOnlyError", "PermissionError"
    assert as_user(READER, (GROUP,), write) == [read_only, denied, denied, denied, read_only]
    assert str(as_user(STRANGER, (), lambda: error_of(read))).startswith(f"{read_only}: ")
    as_user(OWNER, (GROUP,), lambda: config("--delete-config", SETTING))
    assert wrong_modes(path, readable=False) == {}
    assert SETTING in str(as_user(READER, (GROUP,), lambda: error_of(read)))
    assert list(overlay.MEMORY.iterdir()) == []


@as_root
def test_who_may_not_change_it_is_refused_by_name(shared_store):
    def change(readable: bool) -> str:
        with eoslog.open(shared_store) as store:
            return error_of(lambda: store.alter_config({SETTING: readable}))

    outside = as_user(OWNER, (), lambda: change(True))
    assert f"InvalidConfigError: {SETTING}: this process is not in the group" in str(outside)
    assert wrong_modes(shared_store, readable=False) == {}
    # Root, and a file that is another user's in the meantime.
    assert change(True) == ""
    assert wrong_modes(shared_store, readable=True) == {}
    foreign = shared_store / "foreign"
    foreign.touch()
    os.chown(foreign, STRANGER, STRANGER)
    assert "StoreReadOnlyError" in change(False)
    assert str(foreign) in change(False)
    foreign.unlink()
    assert as_user(OWNER, (), lambda: change(False)) == ""
    assert wrong_modes(shared_store, readable=False) == {}

    def not_owner() -> str:
        os.setresuid(STRANGER, STRANGER, 0)
        return error_of(lambda: group_access.set_group_access(StorePaths(shared_store), True))

    shared_store.chmod(0o755)
    assert str(OWNER) in str(in_child(not_owner))


@as_root
def test_a_copy_is_private_if_its_maker_is_not_in_the_group(shared_store, place, caplog):
    """Else another group, all users perhaps, could read it."""
    call("config", "--store", shared_store, "--config", f"{SETTING}=true")
    copies = place / "copies"
    copies.mkdir()
    os.chown(copies, OWNER, OTHER_GROUP)

    def back_up() -> tuple[object, ...]:
        with eoslog.open(shared_store) as store:
            store.backup(copies / "copy")
        eoslog.restore(copies / "copy", copies / "restored")
        return [wrong_modes(copies / name, readable=False) for name in ("copy", "restored")], [
            one.getMessage() for one in caplog.records if "not in the group" in one.getMessage()
        ]

    modes, said = as_user(OWNER, (), back_up)  # type: ignore[misc]
    assert modes == [{}, {}]
    assert len(said) == 1
    call("backup", copies / "of root", "--store", shared_store)
    assert wrong_modes(copies / "of root", readable=True) == {}
    assert (copies / "of root").stat().st_gid == GROUP


@pytest.mark.parametrize("mode", [0o755, 0o2775, 0o2750])
def test_a_directory_that_was_there_does_not_say_what_the_group_may_do(tmp_path, mode):
    path = tmp_path / "store"
    path.mkdir()
    path.chmod(mode)
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        store.producer().append("t", 0, [b"private"])
        assert not [one for one in path.rglob("*") if one.stat().st_mode & 0o077]
        assert path.stat().st_mode & 0o7777 == mode
        store.alter_config(READABLE)
        assert wrong_modes(path, readable=True) == {}
        store.alter_config({SETTING: None})
        assert wrong_modes(path, readable=False) == {}


def test_only_a_change_goes_against_what_the_store_has(tmp_path):
    path = tmp_path / "store"
    for readable in (False, True):
        with eoslog.open(path, create=True) as store:
            store.alter_config({SETTING: readable, "log.retention.ms": 5})
            assert store.remembered.config.get(SETTING, False) is readable
        with eoslog.open(path, create=True, config={SETTING: readable}) as store:
            assert store.config[SETTING] == readable
            assert store.remembered.config["log.retention.ms"] == 5
        with pytest.raises(InvalidConfigError, match="eoslog config"):
            eoslog.open(path, config={SETTING: not readable})
        assert wrong_modes(path, readable=readable) == {}
        with eoslog.open(path, read_only=True) as store:
            assert store.remembered.config.get(SETTING, False) is readable
            assert store.config[SETTING] == readable


def test_a_creation_that_was_cut_short_leaves_no_access(tmp_path):
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    make_directory(path / "state")
    (path / "state").chmod(0o2750)
    eoslog.open(path, create=True).close()
    assert wrong_modes(path, readable=False) == {}


@pytest.mark.parametrize("readable", [True, False])
def test_a_change_that_was_killed_is_made_again(tmp_path, monkeypatch, readable):
    """Access ends with the first step, and begins with the last one."""
    path = tmp_path / "store"
    with eoslog.open(
        path, create=True, config={SETTING: not readable}, durability="process"
    ) as store:
        store.create_topic("t", 2)
    calls = [0]

    def counted(*arguments: object) -> object:
        calls[0] += 1
        return original(*arguments)

    original = group_access.set_access
    paths = StorePaths(path)
    with monkeypatch.context() as patch:
        patch.setattr(group_access, "set_access", counted)
        group_access.set_group_access(paths, readable)
        group_access.set_group_access(paths, not readable)
    for nth in sorted({1, 2, 3, calls[0] // 8, calls[0] // 4}):

        def change(nth: int = nth) -> None:
            Kill(group_access, "set_access", nth).arm()
            group_access.set_group_access(paths, readable)

        with Fork(lambda _: change()) as child:
            assert child.died()
        assert bool(path.stat().st_mode & 0o070) == (not readable and nth == 1)
        with eoslog.open(path) as store:
            store.producer().append("t", 0, [b"between"])
            store.alter_config({SETTING: readable})
        assert wrong_modes(path, readable=readable) == {}
        group_access.set_group_access(paths, not readable)
        assert wrong_modes(path, readable=not readable) == {}


def test_files_that_are_made_at_the_same_time_are_right(place):
    path = place / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("small", config={"segment.bytes": 4096, "segment.index.bytes": 240})

        def create(fork: Fork) -> int:
            with eoslog.open(path) as own:
                made = 0
                while not fork.told():
                    own.producer().append("small", 0, [bytes(900)] * 9)
                    log = own.partition("small", 0)
                    own.delete_records({log.topic_partition: log.log_end_offset})
                    own.create_topic(f"t-{made}")
                    made += 1
                    fork.say()
                return made

        with Fork(create) as child:
            for number in range(10):
                child.hear()
                readable = number % 2 == 0
                store.alter_config({SETTING: readable})
                eventually(lambda: wrong_modes(path, readable=readable) == {})  # noqa: B023
            child.tell()
            assert child.end() >= 10
        assert wrong_modes(path, readable=False) == {}


def test_what_is_shared_with_a_backup_stays_readable_there(tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    with eoslog.open(path, create=True, config=READABLE) as store:
        store.create_topic("t")
        store.producer().append("t", 0, [b"record"])
        engine_of(store).partition("t", 0).roll()
        store.flush()
        store.backup(copy, link=True)
    with eoslog.open(copy) as store:
        store.alter_config({SETTING: False})
    assert wrong_modes(path, readable=True) == {}
    shared = [one for one in copy.rglob("*") if one.is_file() and one.stat().st_nlink > 1]
    assert len(shared) == 1
    assert wrong_modes(copy, readable=False).keys() == {str(shared[0].relative_to(copy))}


def test_only_what_is_in_the_store_is_changed(tmp_path):
    """Not what a link leads to; a link to the store itself is followed."""
    path, outside = tmp_path / "store", tmp_path / "outside"
    outside.mkdir(mode=0o711)
    (outside / "file").touch(mode=0o604)
    modes = [one.stat().st_mode for one in (outside, outside / "file")]
    eoslog.open(path, create=True).close()
    (path / "to a directory").symlink_to(outside)
    (path / "to a file").symlink_to(outside / "file")
    (path / "lost+found").mkdir(mode=0o700)
    (tmp_path / "name").symlink_to(path)
    os.mkfifo(path / "pipe")
    with eoslog.open(tmp_path / "name") as store:
        store.alter_config(READABLE)
    assert [one.stat().st_mode for one in (outside, outside / "file")] == modes
    assert (path.stat().st_mode & 0o7777, (path / "lost+found").stat().st_mode & 0o7777) == (
        0o2750,
        0o700,
    )


def test_a_change_frees_no_lock_of_the_index(tmp_path):
    """LMDB's are the process's: the end of any descriptor of their file would free them."""

    def is_locked() -> bool:
        with (tmp_path / "store" / "state" / "lmdb" / "lock.mdb").open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with eoslog.open(tmp_path / "store", create=True) as store:
        assert in_child(is_locked)
        store.alter_config(READABLE)
        assert in_child(is_locked)


def test_a_file_that_was_there_keeps_its_mode(tmp_path):
    (tmp_path / "file").touch(mode=0o604)
    tmp_path.chmod(0o750)
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
        FileDescriptor(tmp_path / "file", flags).close()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o604
    with pytest.raises(FileExistsError):
        FileDescriptor(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    FileDescriptor(tmp_path / "new", os.O_RDWR | os.O_CREAT).close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
