"""A driver of its own, that a test kills: `driver_child.py {write|commit} STORE ...`.

write STORE ROWS     runs `write_partitions`; a task kills the driver's process in mid-partition
commit STORE FILE STEP   commits the messages in FILE and dies at a step of the decision
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eoslog
from eoslog.spark import commit, session, write_partitions
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog


def write(store_path: str, rows: int) -> None:
    driver = os.getpid()

    def kill_the_driver(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            if TaskContext.get().partitionId() == 1 and number == 3:
                os.kill(driver, signal.SIGKILL)

    spark = session("a driver that dies", "local[2,2]")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = spark.range(0, rows, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    write_partitions(
        frame, store_path, "orders", app_id="job", version=0, each_task=kill_the_driver
    )


def commit_and_die(store_path: str, messages_path: str, step: str) -> None:
    messages = json.loads(Path(messages_path).read_text())
    with eoslog.open(store_path) as store:
        die_at(step)
        commit(messages, store=store, app_id="job", version=0)


def die_at(step: str) -> None:
    """Die just before the decision, just after it, or when so many files have been adopted."""

    def die(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    append, adopt = CompactedLog.append, UnifiedLog.adopt
    if step == "before the decision":
        CompactedLog.append = die
    elif step == "after the decision":

        def append_and_die(*arguments: Any, **options: Any) -> None:
            append(*arguments, **options)
            die()

        CompactedLog.append = append_and_die
    else:
        left = int(step)

        def adopt_and_die(self: Any, *arguments: Any) -> Any:
            nonlocal left
            result = adopt(self, *arguments)
            left -= 1
            if left == 0:
                die()
            return result

        UnifiedLog.adopt = adopt_and_die


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]))
    else:
        commit_and_die(*sys.argv[2:5])
    sys.exit("it should have died")
