"""What others of the machine may do, and what bytes from outside may make the store do."""

from __future__ import annotations

import ast
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from crash import flipped_store

import eoslog
from eoslog.errors import CorruptRecordError, InvalidTopicError
from eoslog.staging.staged_job import job_of_record
from eoslog.staging.staged_message import STAGED_PRODUCER_ID_MIN, StagedFile
from eoslog.staging.staged_names import directory_name, is_directory_name
from eoslog.staging.staged_writer import StagedWriter

ROOT = Path(__file__).parents[2]
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
