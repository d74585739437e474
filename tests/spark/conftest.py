"""One Spark session for all tests of this folder, and stores to land rows in."""

import os
from pathlib import Path

import pytest

import eoslog
from eoslog.spark import JavaNotFoundError, session

# Three tasks at a time, each tried up to three times.
MASTER = "local[3,3]"


def pytest_configure(config):
    # Spark's mapInArrow asks for pandas, of which eoslog makes no use.
    text = "ignore:PySpark does not yet fully support pandas:FutureWarning"
    config.addinivalue_line("filterwarnings", text)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session. Its workers can import the modules of this folder."""
    pytest.importorskip("pyspark")
    folder = Path(__file__).parent
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), known)))
    log_path = tmp_path_factory.mktemp("spark") / "spark.log"
    config = {"spark.sql.shuffle.partitions": 2, "spark.default.parallelism": 3}
    try:
        made = session("eoslog tests", MASTER, config, log_path)
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    yield made
    made.stop()


@pytest.fixture
def store_path(tmp_path):
    """A store with topic `orders` of 4 partitions."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=4)
    return path
