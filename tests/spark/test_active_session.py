"""The format is found in every thread, and after an interrupt of whatever call of Spark."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from gates import LONGEST_WAIT_S
from read_back import numbers_in

from eoslog.spark import JavaNotFoundError, find_java, session
from eoslog.spark.active_session import keep_active, use_this_python

pytestmark = pytest.mark.spark
py4j = pytest.importorskip("py4j.protocol")


@pytest.fixture
def write(spark, store_path):
    def write_three(path=store_path):
        rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("eoslog").option("topic", "orders").mode("append").save(str(path))

    return write_three


@pytest.fixture
def interrupt(spark, tmp_path):
    """Interrupt a call that waits for a job, as Ctrl-C in a notebook does."""
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    def wait(batches):
        begun.touch()
        end_s = time.monotonic() + LONGEST_WAIT_S
        while not go_on.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        yield from batches

    def press():
        end_s = time.monotonic() + LONGEST_WAIT_S
        while not begun.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted():
        thread = threading.Thread(target=press, daemon=True)
        thread.start()
        try:
            spark.range(0, 3, 1, 1).mapInArrow(wait, "id long").collect()
            pytest.fail("the call was not interrupted")
        except KeyboardInterrupt:
            pass
        except py4j.Py4JNetworkError as error:
            # Spark's own cleaning up behind the interrupt was not answered.
            assert isinstance(error.__context__, KeyboardInterrupt)
        thread.join()

    yield interrupted
    go_on.touch()
    spark.sparkContext.cancelAllJobs()


@pytest.mark.soak
def test_a_write_and_a_read_after_an_interrupted_call(spark, store_path, write, interrupt):
    write()
    interrupt()
    write()
    found = spark.read.format("eoslog").option("subscribe", "orders").load(str(store_path))
    assert found.count() == 6
    assert numbers_in(store_path) == [0, 0, 1, 1, 2, 2]


@pytest.mark.long
def test_an_interrupt_does_not_make_session_take_the_session_for_a_new_one(spark, interrupt):
    name = "spark.sql.session.timeZone"
    spark.conf.set(name, "Europe/Paris")
    try:
        interrupt()
        assert session().sparkContext is spark.sparkContext
        assert spark.conf.get(name) == "Europe/Paris"
    finally:
        spark.conf.set(name, "UTC")


@pytest.mark.long
def test_threads_find_the_format_and_leave_no_connection(spark, store_path, write):
    client = spark.sparkContext._gateway._gateway_client
    errors = []

    def in_a_thread():
        try:
            write()
        except Exception as error:
            errors.append(error)

    counts = []
    for _ in range(4):
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
        counts.append(len(client.deque))
    # One more at first: of a thread of Py4J's own.
    assert max(counts[1:]) <= counts[0] + 1
    assert errors == []
    assert numbers_in(store_path) == sorted([0, 1, 2] * 4)


def test_it_is_arranged_once(spark):
    client = spark.sparkContext._gateway._gateway_client
    before = client._create_new_connection
    keep_active(spark)
    session()
    assert client._create_new_connection == before


OWN_SESSION = """
import sys, threading
from pyspark.sql import SparkSession


def write(spark):
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("eoslog").option("topic", "orders").mode("append").save(sys.argv[1])


def in_a_thread(spark):
    found = []

    def run():
        try:
            write(spark)
            found.append("written")
        except Exception as error:
            found.append("not found" if "DATA_SOURCE_NOT_FOUND" in str(error) else str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def made():
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    return builder.config("spark.driver.host", "127.0.0.1").getOrCreate()


spark = made()
print(in_a_thread(spark))
from eoslog.spark import EoslogDataSource, session
if sys.argv[2] == "register":
    spark.dataSource.register(EoslogDataSource)
else:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    found = []
    thread = threading.Thread(target=lambda: found.append(session()))
    thread.start()
    thread.join()
    assert found[0].sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Paris"
print(in_a_thread(spark))
spark.stop()
spark = made() if sys.argv[2] == "register" else session(master="local[1]")
if sys.argv[2] == "register":
    spark.dataSource.register(EoslogDataSource)
print(in_a_thread(spark))
"""


@pytest.mark.soak
@pytest.mark.parametrize("way", ["register", "session"])
def test_a_session_of_ones_own(store_path, way):
    try:
        java = find_java()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    environment = {**os.environ, "JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        [sys.executable, "-c", OWN_SESSION, store_path, way],
        capture_output=True,
        text=True,
        env=environment,
        timeout=3 * LONGEST_WAIT_S,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == ["not found", "written", "written"]


# The interpreter of workers.


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": "python3"}, "python3"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "None"),  # Java runs already, started by spark-submit.
    ],
)
def test_the_package_names_this_interpreter_unless_one_is_named(environment, found):
    script = "import os, eoslog.spark; print(os.environ.get('PYSPARK_PYTHON'))"
    plain = {name: value for name, value in os.environ.items() if "PYSPARK" not in name}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=plain | environment, capture_output=True, text=True
    )
    assert answer.stdout == f"{found}\n", answer.stderr


@pytest.mark.parametrize(
    ("master", "python", "said", "found"),
    [
        ("local[2]", "python3", None, sys.executable),
        ("local[2]", "python3", "python3", "python3"),
        ("local[2]", "/other/python", None, "/other/python"),
        ("spark://host:7077", "python3", None, "python3"),
    ],
)
def test_a_session_made_without_a_word_of_an_interpreter(monkeypatch, master, python, said, found):
    monkeypatch.setenv("PYSPARK_PYTHON", said or sys.executable)
    context = SimpleNamespace(master=master, pythonExec=python)
    changed = use_this_python(SimpleNamespace(sparkContext=context))
    assert (context.pythonExec, changed) == (found, found != python)


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession

way, store = sys.argv[1:]
if way == "import":
    import eoslog.spark
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
if way == "register":
    from eoslog.spark import EoslogDataSource
    spark.dataSource.register(EoslogDataSource)
if way == "session":
    from eoslog.spark import session
    session()
rows = spark.range(0, 10, 1, 1).selectExpr("CAST(id AS STRING) AS value")
rows.write.format("eoslog").options(store=store, topic="orders").mode("append").save()
"""


@pytest.mark.soak
@pytest.mark.parametrize("way", ["import", "register", "session"])
def test_workers_know_the_format_where_the_paths_python_does_not(store_path, tmp_path, way):
    """As in a virtual environment that is not activated."""
    try:
        java = find_java()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 "$@"\n')
    other.chmod(0o755)
    plain = {name: value for name, value in os.environ.items() if "PYSPARK" not in name}
    plain |= {"JAVA_HOME": str(java.home), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    answer = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, way, store_path],
        capture_output=True,
        text=True,
        env=plain,
        timeout=3 * LONGEST_WAIT_S,
    )
    assert answer.returncode == 0, answer.stderr
    assert numbers_in(store_path) == list(range(10))
