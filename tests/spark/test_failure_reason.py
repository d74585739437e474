"""One line says why a Spark job failed."""

import pytest

from eoslog.spark.failure_reason import reason_of

WORKER_RAISED = """An error occurred while calling z:PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed
3 times, most recent failure: Lost task 0.2: org.apache.spark.PythonException: Traceback \
(most recent call last):
  File "worker.py", line 2029, in main
    process()
  File "rows.py", line 3, in append
    raise TypeError(f"row {number}")
TypeError: row 1 of the Spark partition: a record must be bytes

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:5)
Caused by: org.apache.spark.api.python.PythonException: once more
"""
WORKER_DIED = """: org.apache.spark.SparkException: Job aborted due to stage failure:
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting
\tat org.apache.spark.A.b(C.scala:1)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
"""
JAVA_FAILED = """An error occurred while calling o230.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error
\tat org.apache.spark.A.b(C.scala:1)
Caused by: java.lang.IllegalArgumentException: CSV header does not conform to the schema.
 Header: a, c
 Schema: a, b
\tat org.apache.spark.D.e(F.scala:2)
\t... 1 more
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WORKER_RAISED, "TypeError: row 1 of the Spark partition: a record must be bytes"),
        (
            WORKER_DIED,
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). "
            "Consider setting",
        ),
        (
            JAVA_FAILED,
            "IllegalArgumentException: CSV header does not conform to the schema. "
            "Header: a, c Schema: a, b",
        ),
        ("[PATH_NOT_FOUND] Path does not exist", "[PATH_NOT_FOUND] Path does not exist"),
        ("", "RuntimeError"),
    ],
)
def test_reasons(text, reason):
    assert reason_of(RuntimeError(text)) == reason
