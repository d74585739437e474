"""Print what the build needs installed, one requirement a line, from pyproject.toml."""

import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def main() -> None:
    for requirement in tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]:
        print(requirement)


if __name__ == "__main__":
    main()
