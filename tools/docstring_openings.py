"""Check that no docstring opens as a fragment: "True if it is closed", not "Whether it is closed".

A first line is an imperative or a noun phrase that stands alone. The openings below begin neither.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = (
    "What|Whatever|Whether|Which|Whichever|Who|Whoever|Whom|Whose|When|Where|Why|How|As|Of|"
    "It|They|That|These|Those|One that|Nobody|Nothing|So many|So much|The same|Up to where|"
    "From here on|From now on"
)
OPENING = re.compile(rf"(?:{FORBIDDEN})\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folders", nargs="+", type=Path, help="folders of Python files")
    files = [path for folder in arguments.parse_args().folders for path in folder.rglob("*.py")]
    if not files:
        arguments.error("no Python file in these folders")
    count = failed = 0
    for path in sorted(files):
        for line, text in sorted(docstrings(path)):
            count += 1
            if found := OPENING.match(text):
                failed += 1
                print(f"{path}:{line}: a docstring opens with {found[0]!r}: {text.splitlines()[0]}")
    print(f"docstrings: {count - failed} of {count} open as a sentence or a noun phrase")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
