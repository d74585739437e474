"""The parts of the site: docstrings as tables, and the look for what another host is asked."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import eoslog

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "tools" / "check_site.py"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    path = ROOT / "docs" / "site" / "docstring_tables.py"
    spec = importlib.util.spec_from_file_location("docstring_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


NAMES = {
    "eoslog.Store.snapshot": "eoslog.Store.snapshot",
    "Store.snapshot": "eoslog.Store.snapshot",
    "UnknownTopicOrPartitionError": "eoslog.errors.UnknownTopicOrPartitionError",
}


def test_sections_become_tables_and_names_links(tables):
    text = """Read `topic` up to `Store.snapshot`, or `snapshot`.

Parameters
----------
topic : str, optional
    A name, of *any* topic.
columns, max_bytes : int
    The rest.

Raises
------
UnknownTopicOrPartitionError, ValueError
    There is no `topic`."""
    docstring = tables.Docstring(NAMES, "eoslog.Store.scan", eoslog.Store.scan)
    rst = "\n".join(docstring.as_rst(text.split("\n")))
    link = ":py:obj:`Store.snapshot <eoslog.Store.snapshot>`"
    assert f"Read ``topic`` up to {link}, or :py:obj:`snapshot <eoslog.Store.snapshot>`." in rst
    assert rst.count(".. list-table::") == 2
    assert "   * - ``topic``\n       \n       :sub:`str, optional`" in rst
    assert "     - A name, of \\*any\\* topic." in rst
    assert "   * - ``columns``, ``max_bytes``" in rst
    error = "UnknownTopicOrPartitionError <eoslog.errors.UnknownTopicOrPartitionError>"
    assert f"   * - :py:exc:`{error}`, ValueError" in rst
    assert "-----" not in rst


def test_a_compiled_class_shows_what_its_stub_says(tables):
    text = "\n".join(tables.fields_of(eoslog.Record))
    assert "offset : int\n    Number of the record in its partition." in text
    assert "topic\n    str" in "\n".join(tables.fields_of(eoslog.TopicPartition))


@pytest.mark.parametrize(
    "element",
    [
        '<img src="https://example.com/a.png">',
        '<link rel="stylesheet" href="//example.com/a.css">',
        '<script src="http://example.com/a.js"></script>',
        "<style>@import 'https://example.com/a.css';</style>",
        '<p style="background: url(https://example.com/a.png)">',
    ],
)
def test_a_page_that_asks_another_host_is_found(tmp_path, element):
    for number in range(20):
        link = '<a href="https://example.com/">elsewhere</a><img src="a.png">'
        (tmp_path / f"{number}.html").write_text(f"<html><body>{link}</body></html>")
    assert subprocess.run([sys.executable, CHECK, tmp_path], check=False).returncode == 0
    (tmp_path / "0.html").write_text(f"<html><body>{element}</body></html>")
    done = subprocess.run(
        [sys.executable, CHECK, tmp_path], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "0.html" in done.stderr
    assert "example.com" in done.stderr
