"""One Spark session for all tests of this folder, and stores to land rows in."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from gates import Gates

import eoslog
from eoslog.spark import JavaNotFoundError, session

# Three tasks at a time, each tried up to three times.
MASTER = "local[3,3]"
# Spark waits 10 s for the Python process that plans a stream, whatever its settings say. On a
# loaded machine such a process takes longer to begin.
SLOW_START = "Python worker failed to connect back"
STARTS_MAX = 4


def pytest_configure(config):
    # Spark's mapInArrow asks for pandas, of which eoslog makes no use.
    text = "ignore:PySpark does not yet fully support pandas:FutureWarning"
    config.addinivalue_line("filterwarnings", text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Run a test again, with new fixtures, where Spark did not wait for a process to begin."""
    if item.path.parent != Path(__file__).parent:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for start in range(STARTS_MAX):
        if start:
            item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed and SLOW_START in report.longreprtext for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session. Its workers can import the modules of this folder."""
    pytest.importorskip("pyspark")
    folder = Path(__file__).parent
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), known)))
    # Workers compute nothing: none needs a pool of threads for it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    scratch = tmp_path_factory.mktemp("spark")
    config = {
        # Where tests find the files of shuffles.
        "spark.local.dir": str(scratch),
        "spark.sql.shuffle.partitions": 2,
        "spark.default.parallelism": 3,
        "spark.python.daemon.module": "warm_daemon",
        # A task that Spark gave up may write on for so long, 2 s otherwise: longer than it takes
        # on any machine until the test has come to where it lets the task go on.
        "spark.python.task.killTimeout": "100s",
        # A driver that is its own executor does not find itself again once blocks of its are lost,
        # as in the tests of lost shuffles: it would exit after 60 heartbeats in vain, 10 minutes.
        "spark.executor.heartbeat.maxFailures": 1_000_000,
    }
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        made = session("eoslog tests", MASTER, config, scratch / "spark.log")
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    # Spark's own handler cancels all jobs first: other tests of this process interrupt calls, too.
    signal.signal(signal.SIGINT, interrupted)
    yield made
    made.stop()


@pytest.fixture
def store_path(tmp_path):
    """A store with topic `orders` of 4 partitions."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=4)
    return path


@pytest.fixture
def gates(tmp_path):
    """Gates for one job."""
    return Gates(str(tmp_path / "gates"))


@pytest.fixture
def background():
    """Run a function beside the test; it returns a future."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


@pytest.fixture
def steered_spark(spark):
    """The session with the gated source, and small batches."""
    import spark_jobs

    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark_jobs.prepare(spark)
    yield spark
    spark.conf.set(name, before)
