"""A Spark session that stays active: Spark looks formats up in the session of Java's own thread.

Each connection to Java is a thread there. A thread of Python's that has not called Java yet gets a
new one, and so does one in which a call was interrupted (Ctrl-C): the interrupted call goes on in
the old one. A new thread of Java's has no active session, and where there is none Spark knows no
format that is written in Python.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "_eoslog_active_session"
# What a session runs its workers with if it was made when nothing said what.
_ANY_PYTHON = "python3"


def instantiated_session() -> "SparkSession | None":
    """The session of this process, as PySpark's builder finds it, in whatever thread."""
    from pyspark.sql import SparkSession

    found = SparkSession._instantiatedSession
    return found if found is not None and found.sparkContext._jsc is not None else None


def java_of(spark: "SparkSession") -> tuple[Any, Any]:
    """Return the session in Java, and Java's classes: PySpark has no public names for them."""
    return spark._jsparkSession, spark._jvm


def is_connect(spark: "SparkSession") -> bool:
    """Return True for a session of Spark Connect: its Java is another process's."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def use_this_python(spark: "SparkSession") -> bool:
    """Have the workers of a local session run this interpreter, if nothing says which they run.

    True if that was so. Java still looks formats up in the other one: what is registered is known.
    """
    if is_connect(spark):
        return False
    context = spark.sparkContext
    said = context.pythonExec != _ANY_PYTHON or os.environ.get("PYSPARK_PYTHON") == _ANY_PYTHON
    if said or not (context.master or "").startswith("local"):
        return False
    context.pythonExec = sys.executable
    return True


def keep_active(spark: "SparkSession") -> None:
    """Make the session the active one of this thread, and of each new one of Java's, that has none.

    It is done when a connection to Java is made, and costs other calls nothing. The last session
    that this was called with counts, until its context is stopped. A session of Spark Connect needs
    nothing of this.
    """
    if is_connect(spark):
        return
    _activate(spark)
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    connect = getattr(client, "_create_new_connection", None)
    if connect is None:
        return  # Threads share connections (PYSPARK_PIN_THREAD=false).
    already = hasattr(client, _NAME)
    setattr(client, _NAME, spark)
    if already:
        return

    def connect_and_activate() -> Any:
        connection = connect()
        try:
            _activate(getattr(client, _NAME))
        finally:
            # The calls have left it among the idle ones, from which its user is to take it.
            if connection in client.deque:
                client.deque.remove(connection)
        return connection

    client._create_new_connection = connect_and_activate


def _activate(spark: "SparkSession") -> None:
    from py4j.protocol import Py4JError

    java, classes = java_of(spark)
    try:
        if java.sparkContext().isStopped():
            return
        sessions = type(spark)._get_j_spark_session_class(classes)
        if not sessions.getActiveSession().isDefined():
            sessions.setActiveSession(java)
    except Py4JError:
        return  # Java is ending: the call that wanted the connection says so.
