"""A Spark session that works from a plain virtual environment, and does not fill the terminal.

It sets what a job with Python workers needs and what people forget: the workers' interpreter, a
Java, UTC, the loopback address, task retries in local mode, a fast start of the workers, and Arrow
batches of a good size.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eoslog.errors import EoslogError, MissingDependencyError
from eoslog.spark.active_session import (
    instantiated_session,
    is_connect,
    keep_active,
    use_this_python,
)
from eoslog.spark.failure_reason import reason_of
from eoslog.spark.java import find_java
from eoslog.spark.stream_context import pass_checkpoints_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Two tasks at a time, each tried up to four times; `local[2]` alone would never retry.
LOCAL_MASTER = "local[2,4]"

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


class SparkNotStartedError(EoslogError):
    """Spark did not start: the master or a setting is wrong, or the machine has no room for it."""


def session(
    app_name: str = "eoslog",
    master: str = LOCAL_MASTER,
    config: Mapping[str, object] | None = None,
    log_path: str | os.PathLike[str] | None = None,
) -> "SparkSession":
    """Return a SparkSession whose tasks run in this Python environment.

    An existing session is returned as Spark does it, with the SQL settings of `config` applied.
    `format("eoslog")` works in it from every thread, also after an interrupt of a call (Ctrl-C).

    Parameters
    ----------
    app_name : str
        Spark's name of the application.
    master : str
        Spark's master; `local[N,M]` runs N tasks at a time and tries each up to M times.
    config : mapping, optional
        Spark settings, which override the ones set here.
    log_path : str or PathLike, optional
        File to which the Java process and the Python workers append what they print.

    Raises
    ------
    MissingDependencyError
        There is no pyspark.
    JavaNotFoundError
        There is no Java 17 or newer.
    SparkNotStartedError
        Spark refuses the master or a setting, or SPARK_HOME is another Spark.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from eoslog.spark.data_source import EoslogDataSource
    except ImportError as error:
        raise MissingDependencyError(
            "pyspark is not installed: run `pip install 'eoslog[spark]'`"
        ) from error
    _quiet_python()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    known = instantiated_session()
    if known is not None:
        keep_active(known)
    running = SparkSession.getActiveSession() is not None
    if not running:
        _check_spark_home()
        os.environ["JAVA_HOME"] = str(find_java().home)
    with tempfile.TemporaryDirectory(prefix="eoslog-spark-") as folder:
        log4j = Path(folder) / "log4j2.properties"
        log4j.write_text(_LOG4J, encoding="utf-8")
        settings = _settings(master, log4j) if not running else {}
        for name, value in {**settings, **(config or {})}.items():
            builder = builder.config(name, str(value))
        # Java reads the logging configuration while it starts, so the folder may go afterwards.
        try:
            with _standard_error_to(log_path):
                spark = builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            raise SparkNotStartedError(
                f"Spark did not start with master {master!r}: {reason_of(error)}"
            ) from error
    if not running and not is_connect(spark):
        spark.sparkContext.setLogLevel("ERROR")
    keep_active(spark)
    if not is_connect(spark):
        pass_checkpoints_on()
    if use_this_python(spark):
        spark.dataSource.register(EoslogDataSource)
    return spark


def _check_spark_home() -> None:
    """Raise SparkNotStartedError if SPARK_HOME has another Spark than the one of this pyspark."""
    from pyspark import __version__ as version

    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    found = [path.stem.rpartition("-")[2] for path in Path(home, "jars").glob("spark-core_*.jar")]
    if version not in found:
        has = f"Spark {' and '.join(found)}" if found else "no Spark"
        raise SparkNotStartedError(
            f"SPARK_HOME is {home}, which is {has}, and pyspark is {version}: unset SPARK_HOME, or "
            "install the pyspark of its version"
        )


def _settings(master: str, log4j: Path) -> dict[str, object]:
    settings: dict[str, object] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Batches of about 1 MB move fastest between Java and Python, whatever a row's size.
        "spark.sql.execution.arrow.maxBytesPerBatch": 1 << 20,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        # A failed task's message is shown with the worker's own traceback, not Spark's part of it.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    }
    if master.startswith("local"):
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.host"] = "127.0.0.1"
        if os.environ.get("PYSPARK_PYTHON") == sys.executable:  # Else it may not know eoslog.
            settings["spark.python.daemon.module"] = "eoslog.spark.worker_daemon"
    return settings


def _quiet_python() -> None:
    """Silence one warning of pyspark: eoslog uses Arrow, and no pandas object is ever made."""
    warnings.filterwarnings(
        "ignore", message="PySpark does not yet fully support pandas", category=FutureWarning
    )


@contextmanager
def session_log() -> Iterator[Path]:
    """A file for what Java and the workers print, kept only if the work within fails."""
    handle, name = tempfile.mkstemp(prefix="eoslog-spark-", suffix=".log")
    os.close(handle)
    path = Path(name)
    try:
        yield path
    except Exception as error:
        if path.stat().st_size:
            error.add_note(f"Spark's own messages are in {path}")
        else:
            path.unlink()
        raise
    path.unlink()


@contextmanager
def _standard_error_to(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Let processes started within write their standard error to the end of the file."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    saved = os.dup(2)
    try:
        os.dup2(log, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(log)
