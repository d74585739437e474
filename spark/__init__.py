"""Spark as a way into an eoslog store: whole jobs land in the log once, or not at all.

Tasks write staged files that no reader sees (`stage`), the driver decides once (`commit`), and
`write_partitions` does both. Invariants:

- a task never opens the store, so it takes no lock and may be killed at any moment;
- nothing of a job is visible before the driver's decision, all of it after it;
- a version of an application that was committed is never committed again.

Importing this package imports neither pyspark nor Java: each name is loaded when first used. It
names this interpreter as that of Spark's workers, unless the environment names one: Spark would
start the first `python3` of the path, which does not know eoslog where a virtual environment is not
activated.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eoslog.spark.copying import CopyError, CopyResult, Files, Topic, copy
    from eoslog.spark.data_source import EoslogDataSource
    from eoslog.spark.decision import commit
    from eoslog.spark.java import JavaNotFoundError, find_java
    from eoslog.spark.memory_limit import MemoryLimitError
    from eoslog.spark.partition_writer import SparkJobFailedError, WriteResult, write_partitions
    from eoslog.spark.spark_session import SparkNotStartedError, session
    from eoslog.spark.staging import MESSAGE_SCHEMA, StoreNotVisibleError, stage

if "PYSPARK_GATEWAY_PORT" not in os.environ:  # Else spark-submit has chosen.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

__all__ = [
    "MESSAGE_SCHEMA",
    "CopyError",
    "CopyResult",
    "EoslogDataSource",
    "Files",
    "JavaNotFoundError",
    "MemoryLimitError",
    "SparkJobFailedError",
    "SparkNotStartedError",
    "StoreNotVisibleError",
    "Topic",
    "WriteResult",
    "commit",
    "copy",
    "find_java",
    "session",
    "stage",
    "write_partitions",
]

# No module has the name of a function here: importing the module would hide the function.
_HOMES = {
    "MESSAGE_SCHEMA": "staging",
    "CopyError": "copying",
    "CopyResult": "copying",
    "EoslogDataSource": "data_source",
    "Files": "copying",
    "JavaNotFoundError": "java",
    "MemoryLimitError": "memory_limit",
    "SparkJobFailedError": "partition_writer",
    "SparkNotStartedError": "spark_session",
    "StoreNotVisibleError": "staging",
    "Topic": "copying",
    "WriteResult": "partition_writer",
    "commit": "decision",
    "copy": "copying",
    "find_java": "java",
    "session": "spark_session",
    "stage": "staging",
    "write_partitions": "partition_writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
