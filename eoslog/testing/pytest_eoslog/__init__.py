"""Plugin of pytest: stores for tests. `docs/testing.md` describes the fixtures.

It is installed as a package of its own, since pytest imports it in every session: nothing of eoslog
is imported before a test uses a fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eoslog.store.store import Store
    from eoslog.testing.faults import Faults
    from eoslog.testing.history import History
    from eoslog.testing.store_fixture import StoreDirectories

_MARKER = (
    "eoslog(durability='process', config=None): "
    "how `eoslog_store` is opened, with the arguments of `eoslog.open`"
)


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    # Of a distribution with a plugin, pytest compiles every module again, to show the values in its
    # assert statements. Those of eoslog are not what a test is about.
    marked = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.discard("eoslog")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture(scope="session")
def _eoslog_directories(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreDirectories]:
    from eoslog.testing.store_fixture import StoreDirectories

    with StoreDirectories(pytestconfig, tmp_path_factory) as directories:
        yield directories


@pytest.fixture
def eoslog_store(
    request: pytest.FixtureRequest, _eoslog_directories: StoreDirectories
) -> Iterator[Store]:
    """An open `eoslog.Store`, empty, on a RAM disk if there is one.

    A transaction that the test leaves open fails it. `@pytest.mark.eoslog(durability=...,
    config=...)` says how the store is opened; its durability is "process" by default.
    """
    from eoslog.testing.store_fixture import store_of_test

    yield from store_of_test(request, _eoslog_directories)


@pytest.fixture
def eoslog_topic(request: pytest.FixtureRequest, eoslog_store: Store) -> str:
    """Name of a new topic of `eoslog_store`, with one partition."""
    from eoslog.testing.store_fixture import topic_name_of

    name = topic_name_of(request)
    eoslog_store.create_topic(name)
    return name


@pytest.fixture
def eoslog_faults(request: pytest.FixtureRequest, eoslog_store: Store) -> Iterator[Faults]:
    """`eoslog.testing.Faults` of `eoslog_store`: syncs that fail, a full disk, fences, deaths.

    A fault that had no effect fails the test.
    """
    from eoslog.testing.store_fixture import faults_of_test

    yield from faults_of_test(request, eoslog_store)


@pytest.fixture
def eoslog_history(
    request: pytest.FixtureRequest, eoslog_store: Store, _eoslog_directories: StoreDirectories
) -> Iterator[History]:
    """`eoslog.testing.History`: its `store` is `eoslog_store` with clients that are recorded, and
    `assert_exactly_once()` checks all that they did and saw.
    """
    from eoslog.testing.store_fixture import history_of_test

    yield from history_of_test(request, eoslog_store, _eoslog_directories)
