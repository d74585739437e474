"""Build eoslog's extension modules; all else that packaging needs is in pyproject.toml.

Five environment variables choose another build than the release one:

- ``EOSLOG_DEBUG=1``: line tracing, costly checks, ``-O1 -g``;
- ``EOSLOG_SANITIZE=address,undefined``: built with these sanitizers of the C compiler;
- ``EOSLOG_COVERAGE=trace-pc,trace-cmp``: tells a fuzzer where it goes and what it compares;
- ``EOSLOG_CRASH_POINTS=1``: a process may die at each store that others see (crash_point.h);
- ``EOSLOG_WERROR=1``: a warning of the C compiler fails the build.

A change of any of them rebuilds every module; otherwise only what changed is rebuilt.
"""

import sys

if sys.platform != "linux":
    raise SystemExit(
        f"error: eoslog runs on Linux only, and this is {sys.platform}: it needs futexes, robust "
        "mutexes and Linux's calls for files"
    )

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
LAYERS = {
    "eoslog": "eoslog",
    "eoslog.native": "native",
    "eoslog.bindings": "bindings",
    "eoslog.spark": "spark",
}
# Spark looks for top-level packages with such names: so it finds the data source by itself.
FOUND_BY_SPARK = "pyspark_eoslog"
# pytest imports it in every session, and so it must not be in eoslog, which would come with it.
FOUND_BY_PYTEST = "pytest_eoslog"
ROOMS = {
    ".".join((layer, *path.parent.relative_to(ROOT / folder).parts)): path.parent.relative_to(ROOT)
    for layer, folder in LAYERS.items()
    for path in sorted((ROOT / folder).glob("*/**/__init__.py"))
    if path.parent.name not in (FOUND_BY_SPARK, FOUND_BY_PYTEST)
}
PACKAGES = {
    **LAYERS,
    **{room: folder.as_posix() for room, folder in ROOMS.items()},
    FOUND_BY_SPARK: f"spark/{FOUND_BY_SPARK}",
    FOUND_BY_PYTEST: f"eoslog/testing/{FOUND_BY_PYTEST}",
}
CYTHON_LAYERS = ("native", "bindings")
HEADERS = Path("native/include")
STAGED_PXD = Path("build/pxd")
HINT_IN_NATIVE = re.compile(r"^performance hint: (?:\S*/)?native/", re.MULTILINE)
# A compiler takes some hundred megabytes: not more of them than that.
CORES = min(len(os.sched_getaffinity(0)), 8)
INCLUDED_HEADER = re.compile(r'^\s*#\s*include\s+[<"]([^">]+)[">]', re.MULTILINE)

DEBUG = os.environ.get("EOSLOG_DEBUG", "") not in ("", "0")
SANITIZERS = os.environ.get("EOSLOG_SANITIZE", "")
COVERAGE = os.environ.get("EOSLOG_COVERAGE", "")
CRASH_POINTS = os.environ.get("EOSLOG_CRASH_POINTS", "") not in ("", "0")
FOR_TESTS = bool(DEBUG or SANITIZERS or CRASH_POINTS)
WARNINGS_ARE_ERRORS = os.environ.get("EOSLOG_WERROR", "") not in ("", "0")

DIRECTIVES = {
    "language_level": 3,
    "linetrace": DEBUG,
    # Methods as those of C types are: bound as functions of Python they take whatever they are
    # called on for an object of their class, and read its memory.
    "binding": False,
    "embedsignature": True,
    "embedsignature.format": "clinic",
}


# What Cython adds for typed memoryviews: 20,000 lines of C, here and not in each such module.
SHARED_MODULE = "eoslog.bindings._memoryviews"


class CythonModule(Extension):
    """An extension that Cython's bookkeeping of failures can put into a set."""

    __hash__ = object.__hash__


def compile_flags(layer: str) -> list[str]:
    """The C compiler's flags; those for one processor are chosen per function, at run time.

    Loops over records are in `native`. In the bindings -O3 takes half as long again as -O2 to
    compile, and calls take the same time.
    """
    flags = ["-std=gnu11", "-pthread", "-fno-strict-aliasing", "-Wall", "-Wextra"]
    # Cython writes unused parameters, partial initialisers and casts of method pointers.
    flags += ["-Wno-unused-parameter", "-Wno-missing-field-initializers"]
    flags += ["-Wno-cast-function-type", "-Wno-unused-function", "-Wno-sign-compare"]
    if FOR_TESTS:
        flags += ["-O1", "-g", "-fno-omit-frame-pointer"]
    else:
        flags += ["-O3" if layer == "native" else "-O2", "-g0"]
    if SANITIZERS:
        flags += [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all"]
    if COVERAGE:
        flags.append(f"-fsanitize-coverage={COVERAGE}")
    if WARNINGS_ARE_ERRORS:
        flags.append("-Werror")
    return flags


def compile_macros() -> list[tuple[str, str]]:
    macros = [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]
    if DEBUG:
        macros += [("EOSLOG_DEBUG", "1"), ("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")]
    if CRASH_POINTS:
        macros.append(("EOSLOG_CRASH_POINTS", "1"))
    return macros


def extensions() -> list[CythonModule]:
    """One extension per .pyx file, named after its layer and file."""
    sources = [path for layer in CYTHON_LAYERS for path in sorted(Path(layer).glob("*.pyx"))]
    # Warnings inside numpy's headers are not ours to mend: they are system headers here.
    system_headers = ["-isystem", numpy.get_include()]
    link_flags = ["-pthread"] + ([f"-fsanitize={SANITIZERS}"] if SANITIZERS else [])
    named = [(f"eoslog.{source.parent.name}.{source.stem}", source) for source in sources]
    return [
        CythonModule(
            name,
            [source.as_posix()],
            include_dirs=[HEADERS.as_posix()],
            define_macros=compile_macros(),
            extra_compile_args=compile_flags(source.parent.name) + system_headers,
            extra_link_args=link_flags,
        )
        for name, source in [*named, (SHARED_MODULE, Path("bindings/_memoryviews.c"))]
    ]


def write_if_changed(path: Path, text: str) -> None:
    """Leave an equal file and its modification time alone: the time decides what is rebuilt."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def forget_if_changed(folder: Path, text: str) -> None:
    """Empty a folder of what is made from a text, unless it is the same as the last time."""
    said = folder / "made-from.txt"
    if not said.is_file() or said.read_text(encoding="utf-8") != text:
        shutil.rmtree(folder, ignore_errors=True)
        write_if_changed(said, text)


def stage_pxd() -> None:
    """Mirror the .pxd files to where `cimport eoslog.<layer>.<module>` finds them."""
    write_if_changed(STAGED_PXD / "eoslog/__init__.pxd", "")
    for layer in CYTHON_LAYERS:
        folder = STAGED_PXD / "eoslog" / layer
        write_if_changed(folder / "__init__.pxd", "")
        sources = {path.name: path for path in Path(layer).glob("*.pxd")}
        for name, path in sources.items():
            write_if_changed(folder / name, path.read_text(encoding="utf-8"))
        for staged in folder.glob("*.pxd"):
            if staged.name not in sources and staged.name != "__init__.pxd":
                staged.unlink()


@contextmanager
def one_build_at_a_time() -> Iterator[None]:
    """Two builds in one tree would write each other's files: the second waits."""
    Path("build").mkdir(exist_ok=True)
    with open("build/lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def copy_of_standard_error(into: list[str]) -> Iterator[None]:
    """Collect what this process and Cython's workers write to standard error, and show it."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as collected:
        os.dup2(collected.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            collected.seek(0)
            into.append(collected.read().decode(errors="replace"))
            sys.stderr.write(into[-1])


def headers_of(generated: Path) -> list[str]:
    """Our headers that a C file includes, directly or through another of ours."""
    found: set[str] = set()
    waiting = [generated]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8", errors="replace")
        for name in set(INCLUDED_HEADER.findall(text)) - found:
            if (HEADERS / name).is_file():
                found.add(name)
                waiting.append(HEADERS / name)
    return sorted((HEADERS / name).as_posix() for name in found)


class BuildExtensions(build_ext):
    """Translate with Cython, then compile; straight into the source tree when built in place."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = CORES
        if not self.inplace and not FOR_TESTS:
            for extension in self.extensions:
                extension.extra_link_args.append("-Wl,--strip-all")

    def run(self) -> None:
        with one_build_at_a_time():
            failed = self.translate()
            # setuptools compiles elsewhere and copies. In place, its base class compares the
            # sources with the module in the tree itself, and so rebuilds only what changed.
            super(build_ext, self).run() if self.inplace else super().run()
        if failed:
            raise CompileError(f"Cython could not translate {', '.join(failed)}")

    def translate(self) -> list[str]:
        """Turn .pyx into C under build/; return the sources that Cython refused."""
        stage_pxd()
        generated = Path("build/cython-debug" if DEBUG else "build/cython")
        flags_file = Path("build/flags.txt")
        flags = {layer: compile_flags(layer) for layer in CYTHON_LAYERS}
        write_if_changed(flags_file, f"{flags} {compile_macros()} {sys.version}\n")
        forget_if_changed(generated, repr(sorted(DIRECTIVES.items())))
        messages: list[str] = []
        started_s = time.time()
        wanted = {extension.name: extension for extension in self.extensions}
        with copy_of_standard_error(messages):
            translated = cythonize(
                [CythonModule(name, list(wanted[name].sources)) for name in wanted],
                build_dir=str(generated),
                include_path=[str(STAGED_PXD)],
                compiler_directives=DIRECTIVES,
                nthreads=CORES,
                exclude_failures=True,
                shared_utility_qualified_name=SHARED_MODULE,
            )
        if HINT_IN_NATIVE.search("".join(messages)) and not DEBUG:
            self.forget_since(generated, started_s)
            raise CompileError("Cython gave a performance hint for native/ (see above)")
        for extension in translated:
            ours = wanted.pop(extension.name)
            ours.sources = extension.sources
            ours.depends = [str(flags_file), *headers_of(Path(extension.sources[0]))]
        failed = [extension.sources[0] for extension in wanted.values()]
        self.extensions = [
            extension for extension in self.extensions if extension.name not in wanted
        ]
        return failed

    @staticmethod
    def forget_since(generated: Path, started_s: float) -> None:
        """Delete C files just written, so that the next build meets the same hint again."""
        for path in generated.rglob("*.c"):
            if path.stat().st_mtime >= started_s - 1:
                path.unlink()


class BuildModules(build_py):
    """The Python modules as they are; one of them is copied into an editable install too.

    Such an install is an import hook, whose packages can be imported but not listed, and Spark
    lists packages to find data sources.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            installed = Path(self.get_finalized_command("install").install_lib)
            self.mkpath(str(installed / FOUND_BY_SPARK))
            source = Path(PACKAGES[FOUND_BY_SPARK], "__init__.py")
            self.copy_file(str(source), str(installed / FOUND_BY_SPARK / source.name))


os.chdir(ROOT)
setup(
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExtensions, "build_py": BuildModules},
)
