"""Docstrings as Sphinx takes them: NumPy's sections become tables, names that have a page links.

The text of a docstring is Markdown-like: `name` is code. A section is a title with a line of
dashes; each of its entries is a line, and what is indented after it.
"""

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from eoslog.errors import NO_ERROR_CODE, EoslogError

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MODULES = ("eoslog", "eoslog.aio", "eoslog.errors", "eoslog.testing", "eoslog.spark")
HEADINGS = {
    "Parameters": ("Parameters", ""),
    "Attributes": ("Attributes", ""),
    "Returns": ("Returns", ""),
    "Yields": ("Yields", ""),
    "Raises": ("Raises", ""),
}
# Calls of eoslog make them: how is no concern of a reader.
MADE_BY_CALLS = re.compile(
    r"(Async)?(Consumer|Partition|(Transactional)?Producer|Scan|Store)|Fault|History|RecordedStore"
    r"|Recorded(Consumer|Producer)|Call"
)
CODE = re.compile(r"`([^`]+)`")
ERROR = re.compile(r"\b[A-Z]\w+Error\b")
PAGE = re.compile(r"docs/([\w/-]+)\.md")


class Entry(NamedTuple):
    """One entry of a section: its line, and the text about it."""

    head: str
    text: str


def public_names() -> dict[str, str]:
    """The names that have a place in the reference, as code writes them, and their full names."""
    found: dict[str, str] = {}
    for module_name in MODULES:
        module = import_module(module_name)
        for name in getattr(module, "__all__", None) or vars(module):
            one = getattr(module, name)
            full = f"{module_name}.{name}"
            found[full] = full
            if not isinstance(one, type) or name.startswith("_"):
                continue
            found.setdefault(name, full)
            for member in vars(one):
                if not member.startswith("_"):
                    found[f"{full}.{member}"] = f"{full}.{member}"
                    found.setdefault(f"{name}.{member}", f"{full}.{member}")
    return found


class Docstring:
    """A docstring of a name, which becomes reStructuredText."""

    def __init__(self, names: dict[str, str], name: str, described: object) -> None:
        self._names = names
        self._parents = [name, name.rpartition(".")[0]]
        try:
            self._own = set(inspect.signature(described).parameters)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            self._own = set()

    def as_rst(self, lines: list[str]) -> list[str]:
        """The docstring's lines with links and tables."""
        made: list[str] = []
        text: list[str] = []
        index = 0
        while index < len(lines):
            if lines[index] in HEADINGS and set("".join(lines[index + 1 : index + 2])) == {"-"}:
                end = next_section(lines, index + 2)
                made += self._prose(text)
                made += self._table(lines[index], entries(lines[index + 2 : end]))
                text, index = [], end
            else:
                text.append(lines[index])
                index += 1
        return made + self._prose(text)

    def _prose(self, lines: list[str]) -> list[str]:
        return [*self._inline("\n".join(lines)).split("\n"), ""] if lines else []

    def _table(self, title: str, found: list[Entry]) -> Iterator[str]:
        first, second = HEADINGS[title]
        yield from (".. list-table::", f"   :class: docstring {title.lower()}")
        yield from ("   :header-rows: 1", "   :widths: 30 70", "")
        yield from (f"   * - {first}", f"     - {second}")
        for entry in found:
            head = self._head(title, entry.head)
            yield from (f"   * - {head[0]}", *(f"       {line}" for line in head[1:]))
            text = self._inline(entry.text).split("\n")
            yield from (f"     - {text[0]}", *(f"       {line}" for line in text[1:]))
        yield ""

    def _head(self, title: str, head: str) -> list[str]:
        if title == "Raises":
            return [self._inline(head)]
        name, colon, kind = head.partition(" : ")
        if title in ("Returns", "Yields") and not colon:
            return [self._linked(self._inline(name))]
        names = ", ".join(f"``{one}``" for one in name.split(", "))
        return [names, "", f":sub:`{self._escaped(kind)}`"] if colon else [names]

    def _inline(self, text: str) -> str:
        parts, at = [], 0
        for found in CODE.finditer(text):
            parts += [self._plain(text[at : found.start()]), self._code(found[1])]
            at = found.end()
        return "".join([*parts, self._plain(text[at:])])

    def _code(self, code: str) -> str:
        page = PAGE.fullmatch(code)
        if page is not None:
            return f":doc:`/{page[1]}`"
        full = self._target(code)
        return f"``{code}``" if full is None else f":py:obj:`{code} <{full}>`"

    def _target(self, code: str) -> str | None:
        """The full name that a piece of code stands for; None if it has no place of its own."""
        name = code.partition("(")[0]
        if name in self._names:
            return self._names[name]
        if name not in self._own:
            for parent in self._parents:
                if f"{parent}.{name}" in self._names:
                    return f"{parent}.{name}"
        return None

    def _plain(self, text: str) -> str:
        return ERROR.sub(self._error, self._escaped(text))

    def _linked(self, kind: str) -> str:
        """The words of a type; those of classes of eoslog are links."""
        return re.sub(
            r"(?<![`\w.])[A-Z]\w+(?![`\w])",
            lambda one: (
                f":py:obj:`{one[0]} <{self._names[one[0]]}>`" if one[0] in self._names else one[0]
            ),
            kind,
        )

    def _error(self, found: re.Match[str]) -> str:
        full = self._names.get(found[0])
        return found[0] if full is None else f":py:exc:`{found[0]} <{full}>`"

    @staticmethod
    def _escaped(text: str) -> str:
        return re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", re.sub(r"([*|\\])", r"\\\1", text))


def fields_of(described: type) -> list[str]:
    """A section of what an object of plain data holds; none for other classes."""
    found: list[str] = []
    if issubclass(described, tuple) or is_dataclass(described):
        for name, kind in inspect.get_annotations(described).items():
            text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            found += [name, f"    {without_modules(text)}"] if name[0] != "_" else []
    elif described.__module__.startswith("eoslog.bindings."):
        # Of a compiled class the stub beside it says so.
        source = importlib.util.find_spec(described.__module__)
        assert source is not None and source.origin is not None
        stub = Path(source.origin).parent / f"{described.__module__.rpartition('.')[2]}.pyi"
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name == described.__name__:
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.decorator_list and one.returns:
                        found.append(f"{one.name} : {ast.unparse(one.returns)}")
                        found.append(f"    {ast.get_docstring(one) or ''}")
    return ["", "Attributes", "----------", *found] if found else []


def without_modules(annotation: str) -> str:
    """An annotation with the last part of each name."""
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", annotation.replace('"', "").replace("'", ""))


def facts_of(error: type[EoslogError]) -> str:
    """The attributes of an error in a line."""
    code = [f"code {error.code}"] if error.code != NO_ERROR_CODE else []
    true = [name for name in ("retriable", "abortable", "fatal") if getattr(error, name)]
    facts = ", ".join([f'outcome "{error.outcome}"', *code, *true])
    return f":sub:`{facts}`"


def next_section(lines: list[str], begin: int) -> int:
    """The index of the line that begins the section after one, or the number of lines."""
    for index in range(begin, len(lines) - 1):
        if lines[index] in HEADINGS and set(lines[index + 1]) == {"-"}:
            return index
    return len(lines)


def entries(lines: list[str]) -> list[Entry]:
    """The entries of a section."""
    found: list[Entry] = []
    for line in lines:
        if line and not line.startswith(" "):
            found.append(Entry(line, ""))
        elif found:
            head, text = found[-1]
            found[-1] = Entry(head, f"{text}\n{line.strip()}")
    return [Entry(head, text.strip()) for head, text in found]


def setup(app: "Sphinx") -> dict[str, bool]:
    """Register with Sphinx."""
    names = public_names()

    def write_tables(
        app: "Sphinx", what: str, name: str, described: object, options: object, lines: list[str]
    ) -> None:
        if isinstance(described, type) and not {"Attributes", "Parameters"} & set(lines):
            lines += fields_of(described)
        lines[:] = Docstring(names, name, described).as_rst(lines)
        if isinstance(described, type) and issubclass(described, EoslogError):
            lines += ["", facts_of(described)]

    def shorten(
        app: "Sphinx",
        what: str,
        name: str,
        described: object,
        options: object,
        signature: str | None,
        returned: str | None,
    ) -> tuple[str | None, str | None] | None:
        if signature is None:
            return None
        if isinstance(described, type) and MADE_BY_CALLS.fullmatch(described.__name__):
            return "", None
        # It takes names of other clients, to say what they are called here.
        signature = re.sub(r"(, )?\*\*others\b", "", signature)
        annotation = getattr(described, "__annotations__", {}).get("return")
        if annotation is None or isinstance(described, type):
            return signature, None
        if name.startswith("pytest_eoslog."):  # A test names a fixture, and calls nothing.
            signature = ""
            annotation = re.sub(r"^Iterator\[(.*)\]$", r"\1", annotation)
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        text = re.sub(r"\b[A-Z]\w+", lambda one: names.get(one[0], one[0]), without_modules(text))
        return signature, text

    def skip_aliases(
        app: "Sphinx", what: str, name: str, described: object, skip: bool, options: object
    ) -> bool | None:
        """The fields of a named tuple are in its table."""
        return True if type(described).__name__ == "_tuplegetter" else None

    app.connect("autodoc-process-docstring", write_tables)
    app.connect("autodoc-skip-member", skip_aliases)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}
