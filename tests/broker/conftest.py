"""Brokers for the tests of this folder, which `make broker` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_broker import Broker
from kafka_jars import java_command


@pytest.fixture(scope="session", autouse=True)
def kafka() -> None:
    """Skip the tests, and say why, where there is no Java or no way to Kafka's jars."""
    java_command()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that tests share: each uses topics, ids and groups of its own names."""
    made = Broker(tmp_path_factory.mktemp("broker") / "shared")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Make brokers that are a test's own: formatted and started."""
    made: list[Broker] = []

    def make(**options: object) -> Broker:
        made.append(Broker(tmp_path / f"broker-{len(made)}", **options))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.kill()
