"""The session that eoslog starts: what it sets, where it prints, and what it says if it cannot."""

import os
import subprocess
import sys

import pytest

from eoslog.errors import MissingDependencyError
from eoslog.spark import SparkNotStartedError, session
from eoslog.spark.spark_session import _check_spark_home, session_log


@pytest.mark.spark
def test_the_session_has_what_local_jobs_need(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == str(1 << 20)
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"


@pytest.mark.spark
def test_workers_run_in_this_environment(spark):
    (found,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == sys.executable


@pytest.mark.spark
def test_a_session_that_runs_is_returned_with_the_settings_asked_for(spark):
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    same = session("another name", config={name: 777})
    assert same.sparkContext is spark.sparkContext
    assert spark.conf.get(name) == "777"
    spark.conf.set(name, before)


@pytest.mark.long
@pytest.mark.spark
def test_nothing_but_the_result_is_printed(tmp_path):
    """Java's greetings and a failing worker's traceback go to the log file."""
    log_path = tmp_path / "spark.log"
    code = f"""
from eoslog.spark import session
spark = session("quiet", "local[1]", log_path={str(log_path)!r})
try:
    spark.sparkContext.parallelize([0], 1).map(lambda _: 1 / 0).collect()
except Exception as error:
    print("ZeroDivisionError" in str(error))
spark.stop()
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.stdout, answer.stderr) == ("True\n", "")
    assert "ZeroDivisionError" in log_path.read_text()


@pytest.mark.long
def test_a_master_that_spark_refuses_is_one_sentence(tmp_path):
    pytest.importorskip("pyspark")
    path = tmp_path / "notes.txt"
    path.write_text("one\n")
    command = [sys.executable, "-m", "eoslog", "ingest", path, "--topic", "notes"]
    answer = subprocess.run(
        [*command, "--store", tmp_path / "store", "--master", "local[x]"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert "Spark did not start with master 'local[x]'" in last
    assert "Could not parse Master URL" in last


def test_without_pyspark_one_sentence_says_what_to_install(monkeypatch):
    for name in ("pyspark", "pyspark.sql", "py4j", "py4j.protocol"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'eoslog\[spark\]'"):
        session()


@pytest.mark.parametrize(
    ("jars", "words"),
    [([], "is no Spark"), (["spark-core_2.12-3.5.1.jar"], r"is Spark 3\.5\.1, and pyspark is")],
)
def test_another_spark_in_spark_home_is_one_sentence(monkeypatch, tmp_path, jars, words):
    sql = pytest.importorskip("pyspark.sql")
    (tmp_path / "jars").mkdir()
    for name in jars:
        (tmp_path / "jars" / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(SparkNotStartedError, match=f"{words}.*unset SPARK_HOME"):
        session()


def test_the_spark_of_this_pyspark_may_be_in_spark_home(monkeypatch):
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setenv("SPARK_HOME", os.path.dirname(pyspark.__file__))  # noqa: PTH120
    _check_spark_home()


def test_the_log_of_a_session_that_worked_is_removed():
    with session_log() as path:
        path.write_text("greetings")
    assert not path.exists()


def test_the_log_of_one_that_failed_is_kept_and_named_unless_it_is_empty():
    with pytest.raises(RuntimeError) as caught, session_log() as path:
        path.write_text("why")
        raise RuntimeError("failed")
    assert caught.value.__notes__ == [f"Spark's own messages are in {path}"]
    path.unlink()
    with pytest.raises(RuntimeError) as caught, session_log() as path:
        raise RuntimeError("failed")
    assert not hasattr(caught.value, "__notes__")
    assert not path.exists()


def test_importing_the_package_imports_no_spark():
    code = (
        "import sys, eoslog.spark; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_public_name_is_there():
    import eoslog.spark

    for name in eoslog.spark.__all__:
        assert getattr(eoslog.spark, name) is not None
    assert dir(eoslog.spark) == sorted(eoslog.spark.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        eoslog.spark.no_such_name  # noqa: B018
