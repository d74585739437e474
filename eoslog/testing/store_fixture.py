"""Store of one test: where it is, how it is opened, and what becomes of it afterwards."""

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from eoslog.errors import EoslogError
from eoslog.store.opening import open
from eoslog.store.store import Store, parts_of
from eoslog.testing.fault import FaultNotFiredError
from eoslog.testing.faults import Faults
from eoslog.testing.history import History
from eoslog.testing.open_transactions import open_transactions
from eoslog.testing.ram_disk import RamDirectory, find_ram_disk, has_room, is_ram_disk

MARK = "eoslog"
_UNFIT = re.compile(r"[^a-zA-Z0-9._-]+")
_NAME_CHARS_MAX = 60
# True once a test has made calls fail on purpose: its store may not close without an error.
EXPECTED_FAILURES = pytest.StashKey[bool]()
# True once a test raised: it failed, was skipped, or failed as expected.
_RAISED = pytest.StashKey[bool]()


class _Outcomes:
    """Notes which tests raised; a plugin of the sessions that use a store."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when != "teardown" and call.excinfo is not None:
            item.stash[_RAISED] = True


class StoreDirectories:
    """Directories for the stores of one session: on a RAM disk while that has room."""

    def __init__(self, config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
        config.pluginmanager.register(_Outcomes())
        self._factory = tmp_path_factory
        self._number = 0
        self._ram: RamDirectory | None = None
        # Where pytest itself is on a RAM disk the stores are with all else of the test.
        self._disk = None if is_ram_disk(tmp_path_factory.getbasetemp()) else find_ram_disk()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ram is not None:
            self._ram.close()

    def create(self, test_name: str) -> Path:
        """Return the path of a new directory that does not exist yet."""
        if self._disk is None or not has_room(self._disk):
            return self._factory.mktemp(_short(test_name)) / "eoslog"
        if self._ram is None:
            self._ram = RamDirectory(self._disk)
        self._number += 1
        return self._ram.path / str(self._number)

    def remove(self, path: Path) -> None:
        """Remove a directory."""
        in_ram = self._is_in_ram(path)
        shutil.rmtree(path if in_ram else path.parent, ignore_errors=True)

    def keep(self, path: Path, test_name: str) -> Path:
        """Put a directory where pytest's own retention looks after it; return the path there."""
        if not self._is_in_ram(path):
            return path
        kept = self._factory.mktemp(_short(test_name)) / "eoslog"
        shutil.copytree(path, kept, symlinks=True)
        self.remove(path)
        return kept

    def _is_in_ram(self, path: Path) -> bool:
        return self._ram is not None and path.parent == self._ram.path


def store_of_test(request: pytest.FixtureRequest, directories: StoreDirectories) -> Iterator[Store]:
    """Open a store for a test; afterwards close it, and fail if a transaction is open in it."""
    node: pytest.Item = request.node
    settings = _marked_settings(node)
    node.stash[_RAISED] = node.stash[EXPECTED_FAILURES] = False  # It may be run again.
    path = directories.create(node.name)
    failures = request.session.testsfailed
    store = open(path, create=True, **settings)
    parts_of(store).hold_producers()  # So that a forgotten transaction is found, not collected.
    yield store
    is_kept = True
    try:
        problems = _left_open(node, store)
        is_kept = bool(problems) or request.session.testsfailed > failures
    finally:
        try:
            store.close()
        except EoslogError:
            if not node.stash[EXPECTED_FAILURES]:
                is_kept = True
                raise
        finally:
            if is_kept:
                _keep(request, directories, path, "eoslog_store")
            else:
                directories.remove(path)
    if problems:
        count = f"{len(problems)} transaction{'s' * (len(problems) > 1)}"
        lines = "\n".join(f"  {one}" for one in problems)
        pytest.fail(
            f"the test left {count} open in eoslog_store:\n{lines}\n"
            "Commit or abort each, or close its producer.",
            pytrace=False,
        )


def _left_open(node: pytest.Item, store: Store) -> list[str]:
    """Return the transactions that the test forgot: one that raised could not end its own."""
    if store.closed or node.stash[_RAISED] or node.stash[EXPECTED_FAILURES]:
        return []
    return open_transactions(store)


def faults_of_test(request: pytest.FixtureRequest, store: Store) -> Iterator[Faults]:
    """Give a test the faults of its store; afterwards check that each was used."""
    faults = Faults(store)
    yield faults
    request.node.stash[EXPECTED_FAILURES] = faults.any_failed
    try:
        faults.close()
    except FaultNotFiredError as error:
        if not request.node.stash[_RAISED]:  # Else it may not have come to that.
            pytest.fail(str(error), pytrace=False)


def history_of_test(
    request: pytest.FixtureRequest, store: Store, directories: StoreDirectories
) -> Iterator[History]:
    """Give a test the history of its store; it is kept as the store is."""
    name = request.node.name
    path = directories.create(name)
    path.mkdir()
    failures = request.session.testsfailed
    with History(store, path) as history:
        yield history
    if request.session.testsfailed > failures:
        _keep(request, directories, path, "eoslog_history")
    else:
        directories.remove(path)


def topic_name_of(request: pytest.FixtureRequest) -> str:
    """Return a topic's name that shows the test's."""
    return _short(request.node.name)


def _keep(
    request: pytest.FixtureRequest, directories: StoreDirectories, path: Path, what: str
) -> None:
    if request.config.getini("tmp_path_retention_policy") == "none":
        directories.remove(path)
        return
    kept = directories.keep(path, request.node.name)
    request.node.add_report_section("teardown", "eoslog", f"{what} is kept in {kept}")


def _marked_settings(node: pytest.Item) -> Mapping[str, Any]:
    """Return the arguments of `eoslog.open` that the test's markers give; the closest one wins."""
    settings: dict[str, Any] = {}
    for mark in node.iter_markers(MARK):
        if mark.args or mark.kwargs.keys() - {"durability", "config"}:
            pytest.fail(
                "pytest.mark.eoslog takes durability=... and config=..., got "
                f"{', '.join([*map(repr, mark.args), *mark.kwargs])}",
                pytrace=False,
            )
        settings = {**mark.kwargs, **settings}
    return {"durability": "process", **settings}


def _short(test_name: str) -> str:
    return _UNFIT.sub("-", test_name)[:_NAME_CHARS_MAX].strip("-.") or "test"
