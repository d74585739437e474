"""Which layer may know which: every import and cimport of the four folders is read.

native/ knows itself and C; bindings/ knows native/ and the errors; eoslog/ knows bindings/; spark/
knows the public names of eoslog/. A layer that reached past the next one would have to change with
it.

Inside native/ and inside bindings/ cimports form no cycle.

Inside eoslog/ the table of rooms in docs/architecture.md says which room may import which. Imports
inside functions and under TYPE_CHECKING count.
"""

import ast
import functools
import re
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import eoslog

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
MAY_IMPORT_MODULES = {"bindings": {"eoslog.errors"}}
# What else native/ may cimport: C's own headers, by the names Cython gives them.
NATIVE_FOREIGN = {"libc", "posix"}
CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:"
    r"from[ \t]+(?P<source>[\w.]+)[ \t]+)?(?P<keyword>c?import)[ \t]+"
    r"(?P<names>\([^)]*\)|[^#\n]+)",
    re.MULTILINE,
)
STRINGS = re.compile(r'("""|\'\'\')(?:.|\n)*?\1')
FORBIDDEN_IN_CYTHON = re.compile(r"^[ \t]*(?:DEF[ \t]|IF[ \t]|ELIF[ \t]|include[ \t]+[\"'])", re.M)


def names_of(text: str) -> list[str]:
    """The imported names in `a, b as c` or in `(a, b)`; comments and renamings left out."""
    text = re.sub(r"#[^\n]*", "", text).strip("() \t\n\\")
    return [part.split()[0] for part in text.split(",") if part.strip()]


def imports_of_cython(text: str, *, cimports_only: bool = False) -> list[str]:
    """Dotted names that Cython source imports: `module.name` for each name taken from a module."""
    found = []
    for match in CYTHON_IMPORT.finditer(STRINGS.sub('""', text)):
        if cimports_only and match["keyword"] != "cimport":
            continue
        if match["source"]:
            separator = "" if match["source"].endswith(".") else "."
            found += [f"{match['source']}{separator}{name}" for name in names_of(match["names"])]
        else:
            found += names_of(match["names"])
    return found


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def imports_of_python(text: str) -> list[str]:
    """Dotted names that Python source imports, those inside functions and type checks too."""
    found = []
    for node in ast.walk(parsed(text)):
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
        ("spark", "a.py", "import eoslog\nfrom eoslog.staging.writer import StagedWriter"),
        ("spark", "a.py", "from . import writer\nfrom __future__ import annotations"),
    ],
)
def test_what_a_layer_may_know_passes(layer, path, text):
    assert complaints(layer, Path(path), text) == []


# The order of the modules inside native/ and inside bindings/.


def cimports_inside(layer: str, texts: list[tuple[str, str]]) -> dict[str, set[str]]:
    """The modules of its layer that each module cimports, of (module, text of a .pyx or .pxd).

    A module's own .pxd does not count.
    """
    found: dict[str, set[str]] = {module: set() for module, _ in texts}
    for module, text in texts:
        for name in imports_of_cython(text, cimports_only=True):
            parts = absolute(name, layer, Path(f"{module}.pyx")).split(".")
            if parts[:2] == ["eoslog", layer] and parts[2] in found.keys() - {module}:
                found[module].add(parts[2])
    return found


def cycle_of_cimports(layer: str, texts: list[tuple[str, str]]) -> str | None:
    """The cycle as `a -> b -> a`, where each module cimports the next; None if there is none."""
    cycle = cycle_in(cimports_inside(layer, texts))
    if cycle is None:
        return None
    # The sorter's cycle goes from a module to the one that cimports it.
    modules = cycle[:0:-1]
    first = modules.index(min(modules))
    return " -> ".join([*modules[first:], *modules[: first + 1]])


@pytest.mark.parametrize("layer", ["native", "bindings"])
def test_no_module_cimports_itself_by_way_of_others(layer):
    texts = [
        (path.stem, path.read_text(encoding="utf-8"))
        for path in files_of(layer)
        if path.suffix in (".pyx", ".pxd")
    ]
    cycle = cycle_of_cimports(layer, texts)
    assert cycle is None, f"modules of {layer}/ cimport each other: {cycle}"


@pytest.mark.parametrize(
    ("texts", "cycle"),
    [
        (
            [
                ("b", "from eoslog.native.c cimport z"),
                ("a", "from eoslog.native.b cimport (\n    x,  # why\n    y,\n)"),
                ("c", "cimport eoslog.native.a as one"),
            ],
            "a -> b -> c -> a",
        ),
        ([("a", "from . cimport b"), ("b", "from .a cimport x")], "a -> b -> a"),
        ([("a", "from eoslog.native cimport b"), ("b", "cimport eoslog.native.a")], "a -> b -> a"),
        ([("a", "from eoslog.native.a cimport x"), ("b", "from eoslog.native.a cimport x")], None),
        ([("a", "from eoslog.native.b import x"), ("b", "from eoslog.native.a cimport x")], None),
        ([("a", '"""\nfrom .b cimport x\n"""'), ("b", "from .a cimport x")], None),
    ],
)
def test_a_cycle_of_cimports_is_named(texts, cycle):
    assert cycle_of_cimports("native", texts) == cycle


# The wall clock.

WALL_CLOCK = {"time", "time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "ctime"}
CALENDAR_NOW = {"now", "utcnow", "today"}


def wall_clock_reads(text: str) -> list[int]:
    """The lines of Python source that read the wall clock, or that could hide a reading."""
    found = []
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [node.lineno for alias in node.names if alias.name in WALL_CLOCK]
        elif isinstance(node, ast.Attribute):
            owner = node.value
            of_time = isinstance(owner, ast.Name) and owner.id == "time"
            if (of_time and node.attr in WALL_CLOCK) or node.attr in CALENDAR_NOW:
                found.append(node.lineno)
    return found


def test_one_module_reads_the_wall_clock():
    reading = {
        path.relative_to(ROOT).as_posix()
        for layer in ("eoslog", "spark")
        for path in files_of(layer)
        if path.suffix == ".py" and wall_clock_reads(path.read_text(encoding="utf-8"))
    }
    assert reading == {"eoslog/common/clock.py"}


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.time()",
        "from time import time_ns",
        "f = datetime.datetime.now",
        "date.today()",
    ],
)
def test_a_reading_of_the_wall_clock_is_found(text):
    assert wall_clock_reads(text) != []


# The rooms of eoslog/.

PACKAGE = ROOT / "eoslog"
FILES_MAX = 20
ROW = re.compile(r"^\| `(?P<room>\w+)(?:/|\.py)` \| [^|]+ \| (?P<may>[^|]+) \|$", re.MULTILINE)
# Every room may import these.
FOR_ALL = {"errors", "common"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# Public, although they begin with an underscore.
PUBLIC = {"_replace", "_asdict", "_make", "_fields", "_exit", "_getframe"}
FACES = {"eoslog", "eoslog.__main__"}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The modules, parsed."""
    return {name: parsed(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def table() -> dict[str, set[str]]:
    """The rooms, lowest first, and what each may import; spark and the face are no rooms here."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = text.split("## Rooms", 1)[1].split("\n## ", 1)[0]
    found: dict[str, set[str]] = {}
    for row in ROW.finditer(rows):
        may = row["may"]
        named = set(re.findall(r"\w+", may))
        found[row["room"]] = named | set(found) if "all above" in may else named
    return found


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "eoslog"


def imported(name: str) -> set[str]:
    """The modules of ours that a module imports."""
    found = set()
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inside & MODULES.keys()) or {node.module}
    return {one for one in found - {name} if one.split(".")[0] == "eoslog"}


def test_every_module_is_in_a_room():
    rooms = table()
    assert {room_of(name) for name in MODULES.keys() - FACES} <= rooms.keys()


def test_a_room_imports_only_what_it_may():
    rooms = table()
    wrong = set()
    for name in MODULES.keys() - FACES:
        room = room_of(name)
        for one in imported(name):
            of = room_of(one)
            # A public name is taken from the face, which loads it when it is asked for.
            fine = {room} | FOR_ALL | rooms[room]
            if of not in fine and not (one == "eoslog" and "public" in rooms[room]):
                wrong.add(f"{name} imports {one}")
    assert wrong == set()


def test_a_room_has_few_files():
    count = Counter(
        path.parent.relative_to(PACKAGE).as_posix()
        for path in MODULES.values()
        if path.name != "__init__.py"
    )
    assert {room: n for room, n in count.items() if n > FILES_MAX} == {}


def test_no_folder_of_spark_has_too_many_files():
    files = [path for path in (ROOT / "spark").rglob("*.py") if path.name != "__init__.py"]
    assert max(Counter(path.parent for path in files).values()) <= FILES_MAX


def graph() -> dict[str, set[str]]:
    return {name: imported(name) & MODULES.keys() for name in MODULES.keys() - FACES}


def cycle_in(edges: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return None


def test_no_module_imports_itself_by_way_of_others():
    assert cycle_in(graph()) is None


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def defined(tree: ast.AST) -> set[str]:
    """The private names that a module defines: on self or cls, or as functions, classes, names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if is_own(node.value) else set()
    return found


def is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def test_no_room_reads_what_another_keeps_to_itself():
    own: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees().items():
        own[room_of(name)] |= defined(tree)
    found: Counter[str] = Counter()
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                if node.attr not in own[room_of(name)] and not is_own(node.value):
                    found[name] += 1
            elif isinstance(node, ast.ImportFrom) and room_of(node.module or "") != room_of(name):
                found[name] += sum(is_private(alias.name) for alias in node.names)
    assert {name: n for name, n in found.items() if n} == {}


def test_no_class_is_continued_in_another_file():
    """A class of ours that one other class of ours builds on, and nothing else.

    A public class is no such part: what builds on it is one of its kind to those who use it.
    """
    bases: dict[str, set[str]] = defaultdict(set)
    homes: dict[str, str] = {}
    free = set()
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name] = name
                names = {one.id for one in node.bases if isinstance(one, ast.Name)}
                is_public = node.name in eoslog.__all__
                if (
                    is_public
                    or names & {"Protocol", "NamedTuple", "ABC"}
                    or (room_of(name) == "errors")
                ):
                    free.add(node.name)
                for base in names:
                    bases[base].add(node.name)
    found = {
        f"{homes[base]}.{base}"
        for base, built in bases.items()
        if base in homes and len(built) == 1 and base not in free
        if homes[base] != homes[next(iter(built))]
    }
    assert found == set()
