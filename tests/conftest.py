"""What several folders of tests share: markers, and a partition to open and reopen."""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.fork import in_child
from hypothesis import HealthCheck, settings
from one_spark_session import SPARK_FOLDER, OneSparkSession
from quick_java import make_java_quick

MARKERS = (
    "crash: kills processes or breaks files, and recovers from it",
    "forked: is run in a child process, which may die of what it meets",
    "spark: starts Spark, and so needs a Java runtime",
    "every_nth(nth): has many variants that are alike; all but every nth are left to the soak",
)
TOO_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

# The same examples on every run: a change is judged by itself; soaks look for new ones.
settings.register_profile(
    "quick",
    max_examples=30,
    stateful_step_count=25,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=TOO_SLOW_IS_FINE,
)
settings.register_profile(
    "soak",
    max_examples=1500,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=TOO_SLOW_IS_FINE,
)


def pytest_configure(config: pytest.Config) -> None:
    make_java_quick()
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    wanted = str(config.getoption("markexpr"))
    settings.load_profile("soak" if wanted == "soak" else "quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    return OneSparkSession(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What takes longest comes first: no process is left with it while the other has nothing.
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK_FOLDER))
    # An nth that divides no number of values of a parameter leaves every value in.
    seen: Counter[tuple[Path, str]] = Counter()
    for item in items:
        marker = item.get_closest_marker("every_nth")
        if marker is not None and isinstance(item, pytest.Function):
            test = (item.path, item.originalname)
            if seen[test] % marker.args[0]:
                item.add_marker(pytest.mark.soak)
            seen[test] += 1


def pytest_collection_finish() -> None:
    # Where a test collects garbage, it is not to look at ten thousand tests for it.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    if pyfuncitem.get_closest_marker("forked") is None:
        return (yield)
    work = pyfuncitem.obj

    def reason_to_skip(named: dict[str, Any]) -> str | None:
        try:
            work(**named)
        except pytest.skip.Exception as skipped:
            return str(skipped)
        return None

    def work_in_child(**named: Any) -> None:
        if (reason := in_child(lambda: reason_to_skip(named))) is not None:
            pytest.skip(reason)

    pyfuncitem.obj = work_in_child
    try:
        return (yield)
    finally:
        pyfuncitem.obj = work


@pytest.fixture(scope="session", autouse=True)
def _memory_is_a_disk() -> Iterator[None]:
    """Take a file system in memory for a disk, in this process: tests count its syncs, and have
    them fail. What is preloaded for that does the same (`real_call.h`).
    """
    from eoslog.bindings import file_descriptor

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_descriptor, "is_in_memory", lambda _: False)
        yield


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on the disk. `tmp_path` may be in memory."""
    with tempfile.TemporaryDirectory(prefix="eoslog-test-") as directory:
        yield Path(directory)


@pytest.fixture
def make_partition(tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Make partitions (each in a folder of its own) that are closed at the test's end."""
    from partition_files import PartitionFiles, settings_named

    made: list[PartitionFiles] = []

    def make(**config: int) -> PartitionFiles:
        folder = tmp_path / f"partition-{len(made)}"
        made.append(PartitionFiles(folder, settings_named(**config)))
        return made[-1]

    yield make
    for files in made:
        files.close(clean=False)


@pytest.fixture(scope="module")
def make_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., object]]:
    """A new log for each example of a property; those before are closed."""
    from partition_files import PartitionFiles, settings_named

    made: list[PartitionFiles] = []

    def make(**config: int) -> object:
        if made:
            made.pop().close(clean=False)
        folder = tmp_path_factory.mktemp("log") / "p"
        made.append(PartitionFiles(folder, settings_named(**config)))
        return made[-1].open()

    yield make
    for files in made:
        files.close(clean=False)
