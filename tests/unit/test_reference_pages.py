"""docs/reference/ has each public name once, and docs/index.md a place for each page."""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import eoslog
import eoslog.aio
import eoslog.checking
import eoslog.testing

DOCS = Path(__file__).parents[2] / "docs"
DESCRIBED = [
    name
    for page in sorted(DOCS.glob("reference/*.md"))
    for name in re.findall(r"^\.\. auto\w+:: (\S+)$", page.read_text(), re.MULTILINE)
]


def public_names(*modules: object) -> set[str]:
    return {f"{one.__name__}.{name}" for one in modules for name in one.__all__}  # type: ignore[attr-defined]


def test_no_name_is_described_twice():
    assert len(DESCRIBED) == len(set(DESCRIBED)) > 80


def test_each_public_name_is_described():
    spark = pytest.importorskip("eoslog.spark")
    modules = (eoslog, eoslog.aio, eoslog.checking, eoslog.testing, spark)
    described = {name for name in DESCRIBED if not name.startswith("pytest_eoslog.")}
    assert described == public_names(*modules) - {"eoslog.__version__"}


def test_each_fixture_is_described():
    plugin = find_spec("pytest_eoslog")
    assert plugin is not None
    fixtures = re.findall(r"^def (eoslog_\w+)\(", Path(plugin.origin).read_text(), re.MULTILINE)
    found = [name.partition(".")[2] for name in DESCRIBED if name.startswith("pytest_eoslog.")]
    assert found == fixtures


def test_each_public_call_has_a_docstring():
    """Without one the reference leaves it out."""
    spark = pytest.importorskip("eoslog.spark")
    modules = (eoslog, eoslog.aio, eoslog.checking, eoslog.testing, spark)
    public = {getattr(one, name) for one in modules for name in one.__all__ if name[0] != "_"}
    missing = [
        f"{one.__name__}.{name}"
        for one in public
        if isinstance(one, type)
        for name, member in vars(one).items()
        if name[0] != "_" and (inspect.isfunction(member) or isinstance(member, property))
        if not inspect.getdoc(member)
    ]
    assert missing == []


TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_each_page_has_its_place():
    found = ["index"]
    for index in (DOCS / "index.md", DOCS / "reference" / "index.md"):
        for tree in TOCTREE.findall(index.read_text()):
            names = [line for line in tree.splitlines() if line and not line.startswith(":")]
            found += [str((index.parent / name).relative_to(DOCS)) for name in names]
    pages = [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]
    expected = [str(page.relative_to(DOCS).with_suffix("")) for page in pages]
    assert sorted(found) == sorted([*expected, "decisions/index"])
