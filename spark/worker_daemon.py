"""Daemon of Spark's Python workers that imports an installed pyspark from its files.

Spark names `pyspark.zip` first in the path of its workers. A zip file holds no bytecode, so each
daemon compiles pyspark, for a second or two, and a session starts one for each kind of work. Beside
the zip file of a pyspark that pip installed lie the same modules, compiled.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def prefer_installed() -> None:
    """Move the zip file to the path's end, if what `import pyspark` finds then is of the same
    installation.
    """
    zipped = [path for path in sys.path if path.endswith("pyspark.zip")]
    others = [path for path in sys.path if path not in zipped]
    found = PathFinder.find_spec("pyspark", others)
    if found is None or found.origin is None:
        return
    package = Path(found.origin).parent.resolve()
    # `python/lib/pyspark.zip` of the package.
    if all(Path(path).resolve().parents[2] == package for path in zipped):
        sys.path[:] = others + zipped


if __name__ == "__main__":
    prefer_installed()

    from pyspark.daemon import manager

    manager()
