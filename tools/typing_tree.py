"""Lay the folders out as they are installed, under build/typing, for tools that read sources.

setup.py maps native/ to eoslog.native and so on; a type checker follows folders only. The tree
consists of links, so what it reports is what is in the working tree.
"""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "typing"


def main() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    package = TREE / "eoslog"
    package.mkdir(parents=True)
    for path in (ROOT / "eoslog").iterdir():
        if path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    for layer in ("native", "bindings", "spark"):
        if (ROOT / layer).is_dir():
            (package / layer).symlink_to(ROOT / layer)


if __name__ == "__main__":
    main()
