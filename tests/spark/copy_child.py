"""A copy that a test kills: `copy_child.py {into-files|into-topic} STORE FILES POINT`.

into-files kills its driver when the list of batch POINT is there, into-topic when the version POINT
is in the log; Spark's checkpoint knows neither of them yet, or just so.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from eoslog.spark import Files, Topic, copy, copying, session


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def into_files(store_path: str, files: str, point: int) -> None:
    def kill_when_listed() -> None:
        while not Path(files, "_spark_metadata", str(point)).exists():
            time.sleep(0.001)
        die()

    threading.Thread(target=kill_when_listed, daemon=True).start()
    # Many batches: seconds after the one that is waited for there are still some to come.
    topic = Topic(store_path, "orders", options={"maxOffsetsPerTrigger": "5"})
    copy(topic, Files(files), spark=session("a copy that dies", "local[2,2]"))


def into_topic(store_path: str, files: str, point: int) -> None:
    write = copying.write_partitions

    def write_and_die(*arguments: Any, version: int, **options: Any) -> Any:
        result = write(*arguments, version=version, **options)
        if version == point:
            die()
        return result

    copying.write_partitions = write_and_die
    source = Files(files, options={"maxFilesPerTrigger": "1"})
    copy(source, Topic(store_path, "orders"), spark=session("a copy that dies", "local[2,2]"))


if __name__ == "__main__":
    direction, store_path, files, point = sys.argv[1:]
    (into_files if direction == "into-files" else into_topic)(store_path, files, int(point))
    sys.exit("it should have died")
