"""A driver of its own that runs jobs of `spark_jobs` as a test asks for them: `RemoteDriver`.

`driver_main.py MASTER CONFIG`. A line of its input is a call, a line of its output says that the
session is there (with Java's process id), or what became of a call. Calls run at the same time.
"""

import json
import sys
import threading
from typing import Any

import spark_jobs

from eoslog.spark import session
from eoslog.spark.failure_reason import reason_of

_printing = threading.Lock()


def tell(**what: Any) -> None:
    with _printing:
        print(json.dumps(what), flush=True)


def run(spark: Any, number: int, name: str, arguments: dict[str, Any]) -> None:
    try:
        spark_jobs.enter_thread(spark)
        result = getattr(spark_jobs, name)(spark, **arguments)
    except Exception as error:
        tell(call=number, error=f"{type(error).__name__}: {reason_of(error)}")
    else:
        tell(call=number, result=result)


def main(master: str, config: str) -> None:
    spark = session("a driver that tests steer", master, json.loads(config))
    spark_jobs.prepare(spark)
    tell(java=spark.sparkContext._gateway.proc.pid)
    for line in sys.stdin:
        threading.Thread(target=run, args=(spark, *json.loads(line)), daemon=True).start()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
