"""Print what pyproject.toml requires, one requirement a line, as pip's -r takes them.

Usage: requirements.py build, for what a build needs; requirements.py EXTRA..., for what eoslog with
these extras needs, itself left out.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
# It comes as a source archive of 450 MB, most of it compressed already: pip builds a wheel of it.
AS_IT_IS = {"pyspark": ' --config-settings "--build-option=--compression=stored"'}


def required_by(project: dict[str, Any], extras: list[str]) -> Iterator[str]:
    yield from project["dependencies"]
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            itself = re.fullmatch(r"eoslog\[([\w,]+)\]", requirement)
            if itself is None:
                yield requirement
            else:
                yield from required_by(project, itself[1].split(","))


def main() -> None:
    wanted = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    if sys.argv[1:] == ["build"]:
        found = wanted["build-system"]["requires"]
    else:
        found = required_by(wanted["project"], sys.argv[1:])
    for requirement in dict.fromkeys(found):
        name = re.match(r"[\w-]+", requirement)
        assert name is not None, requirement
        print(requirement + AS_IT_IS.get(name[0], ""))


if __name__ == "__main__":
    main()
