"""Which layer may know which: every import and cimport of the four folders is read.

native/ knows itself and C; bindings/ knows native/, the errors and who a handler of a signal is;
eoslog/ knows bindings/; spark/ knows the public names of eoslog/. A layer that reached past the
next one would have to change with it.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "native": "eoslog.native",
    "bindings": "eoslog.bindings",
    "eoslog": "eoslog",
    "spark": "eoslog.spark",
}
LAYER_OF_SUBPACKAGE = {"native": "native", "bindings": "bindings", "spark": "spark"}
MAY_IMPORT = {
    "native": {"native"},
    "bindings": {"native", "bindings"},
    "eoslog": {"bindings", "eoslog"},
    "spark": {"eoslog", "spark"},
}
MAY_IMPORT_MODULES = {"bindings": {"eoslog.errors", "eoslog.common.signal_handlers"}}
# What else native/ may cimport: C's own headers, by the names Cython gives them.
NATIVE_FOREIGN = {"libc", "posix"}
CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:"
    r"from[ \t]+(?P<source>[\w.]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^#\n]+)"
    r"|c?import[ \t]+(?P<modules>[^#\n]+))",
    re.MULTILINE,
)
STRINGS = re.compile(r'("""|\'\'\')(?:.|\n)*?\1')
FORBIDDEN_IN_CYTHON = re.compile(r"^[ \t]*(?:DEF[ \t]|IF[ \t]|ELIF[ \t]|include[ \t]+[\"'])", re.M)


def names_of(text: str) -> list[str]:
    """The imported names in `a, b as c` or in `(a, b)`; comments and renamings left out."""
    text = re.sub(r"#[^\n]*", "", text).strip("() \t\n\\")
    return [part.split()[0] for part in text.split(",") if part.strip()]


def imports_of_cython(text: str) -> list[str]:
    """Dotted names that Cython source imports: `module.name` for each name taken from a module."""
    found = []
    for match in CYTHON_IMPORT.finditer(STRINGS.sub('""', text)):
        if match["source"]:
            found += [f"{match['source']}.{name}" for name in names_of(match["names"])]
        else:
            found += names_of(match["modules"])
    return found


def imports_of_python(text: str) -> list[str]:
    """Dotted names that Python source imports, those inside functions and type checks too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            separator = "" if source.endswith(".") else "."
            found += [f"{source}{separator}{alias.name}" for alias in node.names]
    return found


def absolute(name: str, layer: str, path_inside: Path) -> str:
    """A relative import as the absolute name it stands for."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    parts = [*PACKAGES[layer].split("."), *path_inside.parent.parts]
    parts = parts[: len(parts) - (level - 1)]
    return ".".join([*parts, name.lstrip(".")])


def layer_of(name: str) -> str | None:
    """The layer that a dotted name belongs to; None if it is not ours."""
    parts = name.split(".")
    if parts[0] != "eoslog":
        return None
    return LAYER_OF_SUBPACKAGE.get(parts[1] if len(parts) > 1 else "", "eoslog")


def complaint(layer: str, name: str) -> str | None:
    """Why this layer may not import this name; None if it may."""
    of_layer = layer_of(name)
    if of_layer is None:
        if layer == "native" and name.split(".")[0] not in NATIVE_FOREIGN:
            return f"native knows only C, not {name}"
        return None
    if of_layer not in MAY_IMPORT[layer]:
        allowed = MAY_IMPORT_MODULES.get(layer, set())
        if not any(name == module or name.startswith(f"{module}.") for module in allowed):
            return f"{layer} may not import {name}, of layer {of_layer}"
    private = any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
    if layer == "spark" and of_layer == "eoslog" and private:
        return f"spark may use public names only, not {name}"
    return None


def complaints(layer: str, path_inside: Path, text: str) -> list[str]:
    """Everything wrong with one file of a layer."""
    if path_inside.suffix in (".pyx", ".pxd"):
        names = imports_of_cython(text)
        found = [
            match[0].strip() for match in FORBIDDEN_IN_CYTHON.finditer(STRINGS.sub('""', text))
        ]
        wrong = [f"Cython's own preprocessor is not used: {text}" for text in found]
        if layer in ("eoslog", "spark"):
            wrong.append("only native and bindings are written in Cython")
    else:
        names = imports_of_python(text)
        wrong = []
    made = (complaint(layer, absolute(name, layer, path_inside)) for name in names)
    return wrong + [reason for reason in made if reason]


def files_of(layer: str) -> list[Path]:
    folder = ROOT / layer
    endings = {".py", ".pyi", ".pyx", ".pxd"}
    return sorted(path for path in folder.rglob("*") if path.suffix in endings)


@pytest.mark.parametrize("layer", PACKAGES)
def test_each_layer_imports_only_what_it_may_know(layer):
    files = files_of(layer)
    assert files, f"{layer}/ holds no source"
    wrong = [
        f"{path.relative_to(ROOT)}: {reason}"
        for path in files
        for reason in complaints(
            layer, path.relative_to(ROOT / layer), path.read_text(encoding="utf-8")
        )
    ]
    assert wrong == []


def test_the_engine_does_not_include_the_interpreter():
    headers = sorted((ROOT / "native").rglob("*.h"))
    assert headers
    assert [path.name for path in headers if "Python.h" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("layer", "path", "text"),
    [
        ("native", "a.pyx", "from cpython.bytes cimport PyBytes_AS_STRING"),
        ("native", "a.pyx", "import os"),
        ("native", "a.pxd", "from eoslog.bindings.status cimport raise_status"),
        ("native", "a.pyx", "DEF SIZE = 3"),
        ("native", "a.pyx", 'include "b.pyx"'),
        ("bindings", "a.pyx", "from eoslog.store.store import Store"),
        ("bindings", "a.pyx", "from eoslog import TopicPartition"),
        ("bindings", "a.pyx", "from ..store import Store"),
        ("eoslog", "a.py", "from eoslog.native import crc32c"),
        ("eoslog", "a.py", "def late():\n    from .spark import source"),
        ("eoslog", "a.pyx", "x = 1"),
        ("spark", "a.py", "import eoslog.bindings.partition_log"),
        ("spark", "a.py", "from .. import bindings"),
        ("spark", "a.py", "from eoslog.store.store import _Lock"),
        ("spark", "a.py", "from eoslog._paths import staging"),
    ],
)
def test_a_reach_past_the_next_layer_is_found(layer, path, text):
    assert complaints(layer, Path(path), text) != []


@pytest.mark.parametrize(
    ("layer", "path", "text"),
    [
        ("native", "a.pyx", "from libc.string cimport memcpy\nfrom eoslog.native.a cimport b"),
        (
            "bindings",
            "a.pyx",
            "import numpy\nfrom eoslog.native.a cimport (\n    b,  # why\n    c,\n)",
        ),
        ("bindings", "a.pyx", "from eoslog.errors import StoreError"),
        ("bindings", "a.pyx", '"""Text:\n\nfrom eoslog.store.store import Store\n"""'),
        ("eoslog", "a.py", "import lmdb\nfrom .errors import StoreError"),
        ("eoslog", "a.py", "from eoslog.bindings.partition_log import PartitionLog"),
        ("spark", "a.py", "import eoslog\nfrom eoslog.staging.staged import StagedWriter"),
        ("spark", "a.py", "from . import writer\nfrom __future__ import annotations"),
    ],
)
def test_what_a_layer_may_know_passes(layer, path, text):
    assert complaints(layer, Path(path), text) == []
