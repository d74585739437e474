"""What others of the machine may do, and what bytes from outside may make the store do."""

from __future__ import annotations

import ast
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from crash import flipped_store
from harness.crew import started

import eoslog
from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.errors import CorruptRecordError, InvalidTopicError
from eoslog.fs.private_files import make_outer_directories
from eoslog.staging.job import job_of_record
from eoslog.staging.message import STAGED_PRODUCER_ID_MIN, StagedFile
from eoslog.staging.names import directory_name, is_directory_name
from eoslog.staging.writer import StagedWriter

ROOT = Path(__file__).parents[2]
NOBODY = 65534
FILE = {
    "topic": "orders",
    "partition": 0,
    "name": "orders-0.0.batches",
    "bytes": 100,
    "records": 1,
    "producer_id": STAGED_PRODUCER_ID_MIN,
    "crc": 1,
}
ESCAPES = ["..", ".", "../x", "/etc/passwd", "a/b", "a\0b", "", "~", "a/../../b", "x\n/y"]


def modes_below(path: Path) -> dict[str, str]:
    """The files and directories that others than their user can do anything with."""
    found = {}
    for folder, folders, files in os.walk(path):
        for one in (Path(folder, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # The store's thread has removed it just now.
                mode = one.stat().st_mode
                if mode & 0o077:
                    found[str(one.relative_to(path))] = stat.filemode(mode)
    return found


def owners_below(path: Path) -> set[tuple[int, int]]:
    found = set()
    for folder, _, files in os.walk(path):
        for one in (Path(folder), *(Path(folder, name) for name in files)):
            with suppress(FileNotFoundError):
                status = one.stat()
                found.add((status.st_uid, status.st_gid))
    return found


def test_every_file_is_its_users_alone(tmp_path):
    """Whatever the umask is; each kind of file is there, also those of an open store."""
    before = os.umask(0)
    try:
        flipped_store.make_store(tmp_path / "above" / "store", tmp_path / "aside")
        assert modes_below(tmp_path / "above") == {}
        with eoslog.open(tmp_path / "above" / "store") as store:
            store.consumer(group="members").subscribe([flipped_store.TOPIC])
            assert modes_below(tmp_path) == {}
        assert modes_below(tmp_path / "above") == {}
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone becomes another user")
def test_what_root_makes_in_a_store_belongs_to_its_directorys_owner():
    """Each kind of file, before the owner's process and beside it."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's are root's alone.
        above, root = Path(folder), Path(folder, "store")
        above.chmod(0o755)
        root.mkdir()
        os.chown(root, NOBODY, NOBODY)
        flipped_store.make_store(root, above / "aside")
        assert owners_below(root) == {(NOBODY, NOBODY)}
        code = SERVICE.format(tests=str(ROOT / "tests"), aside=str(above / "aside"), root=str(root))
        with started(code) as service:
            service.hear("open")
            with eoslog.open(root) as store:
                store.create_topic("more", config={"segment.bytes": 1024})
                store.producer().append("more", partition=0, values=[bytes(200)] * 20)
                store.consumer(group="members").subscribe(["more"])
                assert owners_below(root) == {(NOBODY, NOBODY)}
            service.tell()
            service.hear("read")
            assert owners_below(root) == {(NOBODY, NOBODY)}


SERVICE = """
import sys
sys.path[:0] = [{tests!r}]
from harness.fork import as_nobody
import eoslog
def use(path, meanwhile=lambda: None):
    with eoslog.open(path, create=True) as store:
        store.create_topic("new", exist_ok=True)
        meanwhile()
        store.producer().append("new", partition=0, values=[b"more"])
        reader = store.consumer("readers")
        reader.subscribe(["new"])
        assert reader.poll(timeout=5)
def go_on():
    say("open")
    wait()
use({aside!r})  # Root alone may be able to read the modules.
as_nobody()
use({root!r}, go_on)
use({root!r})
say("read")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_root_gives_nothing_away_that_it_did_not_make(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    others = tmp_path / "of root"
    others.write_bytes(b"")
    os.chown(store, NOBODY, NOBODY)
    (store / "link").symlink_to(others)
    (store / "second name").hardlink_to(others)
    (store / "link to nothing").symlink_to(tmp_path / "new")
    for name in ("link", "second name", "link to nothing"):
        FileDescriptor(store / name, os.O_RDWR | os.O_CREAT).close()
    assert (others.stat().st_uid, (tmp_path / "new").stat().st_uid) == (0, 0)
    make_outer_directories(store / "of a store")
    assert (store / "of a store").stat().st_uid == 0


def calls_of(tree: ast.AST) -> list[str]:
    """Names that are called or imported, with the module where that is written."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found.append(ast.unparse(node.func))
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(str(node.module))
    return found


FORBIDDEN_MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "yaml", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}


def forbidden_in(source: str) -> list[str]:
    called = calls_of(ast.parse(source))
    return [
        name
        for name in called
        if name in FORBIDDEN_CALLS or name.split(".")[0] in FORBIDDEN_MODULES
    ]


def test_nothing_that_is_read_is_ever_run():
    sources = [path for layer in ("eoslog", "spark") for path in (ROOT / layer).glob("**/*.py")]
    assert len(sources) > 150
    assert {str(path): found for path in sources if (found := forbidden_in(path.read_text()))} == {}
    for path in (ROOT / "bindings").glob("*.pyx"):
        # No syntax tree of Python's: the words are looked for.
        words = path.read_text().replace("(", " ( ").split()
        assert not FORBIDDEN_MODULES & set(words), path
        assert not {"eval", "exec"} & set(words), path


@pytest.mark.parametrize(
    "source", ["import pickle", "from pickle import loads", "eval('1')", "os.system('x')"]
)
def test_it_would_be_seen(source):
    assert forbidden_in(source)


@pytest.mark.parametrize("name", ESCAPES)
def test_a_topics_name_leads_nowhere_else(name, tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store, pytest.raises(InvalidTopicError):
        store.create_topic(name)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_staged_files_name_leads_nowhere_else(name):
    with pytest.raises(ValueError, match="not the name of a staged file"):
        StagedFile(**{**FILE, "name": name})
    with pytest.raises(InvalidTopicError):
        StagedFile(**{**FILE, "topic": name})


@pytest.mark.parametrize("name", ESCAPES)
def test_a_manifest_leads_nowhere_else(name, tmp_path):
    """Nor does the directory of an attempt in it."""
    assert not is_directory_name(name)
    described = {"topics": {}, "manifest": [[name, [[*FILE.values()]]]]}
    with pytest.raises(CorruptRecordError, match="name of an attempt"):
        job_of_record("app", 1, tmp_path, described)


@pytest.mark.parametrize("name", [one for one in ESCAPES if one])
def test_an_applications_name_is_no_path(name, tmp_path):
    made = directory_name(name, "app_id")
    assert is_directory_name(made) and (tmp_path / made).parent == tmp_path
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("orders")
        writer = StagedWriter(
            store.path, name, name, name, partitions={"orders": 1}, durability="process"
        )
        writer.append("orders", 0, [b"v"])
        message = writer.close()
        store.commit_staged(name, 0, [message], name)
        assert store.partition("orders", 0).log_end_offset == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_made(tmp_path):
    path = tmp_path / os.fsdecode(b"bad\xff")
    with pytest.raises(ValueError, match="UTF-8"):
        eoslog.open(path, create=True)
    assert list(tmp_path.iterdir()) == []
