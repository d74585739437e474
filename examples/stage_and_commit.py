"""The two halves of a job by themselves, for code that has its own mapPartitions.

Tasks write staged files, which no reader sees, and hand back a small message each. The driver makes
one decision over all messages: from then on all of the job is in the log.
"""

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import eoslog
from eoslog import TopicPartition
from eoslog.spark import commit, session, stage

APP_ID = "squares"


def main(store_path: str) -> None:
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("squares", partitions=2, exist_ok=True)
        run_id = store.begin_run(APP_ID)  # Older runs of this application are refused from here on.

    def land(numbers: Iterator[int]) -> Iterator[Any]:
        """What a task does with its part: any Python, and `stage` at the end of it."""
        records = ((b"%d" % number, b"%d" % number**2) for number in numbers)
        return stage(
            records, store=store_path, topic="squares", partitions=2, app_id=APP_ID, run_id=run_id
        )

    spark = session("stage and commit")
    messages = spark.sparkContext.parallelize(range(10_000), 4).mapPartitions(land).collect()
    spark.stop()

    with eoslog.open(store_path) as store:
        targets = [TopicPartition("squares", number) for number in range(2)]
        with store.consumer() as consumer:
            print(f"before the decision: {sum(consumer.end_offsets(targets).values())} records")
            result = commit(messages, store=store, app_id=APP_ID, version=0)
            print(f"after it: {sum(consumer.end_offsets(targets).values())} records")
        for target, (first, last) in sorted(result.offsets.items()):
            print(f"  {target}: offsets {first} to {last}")
        again = commit(messages, store=store, app_id=APP_ID, version=0)
        print(f"the same decision again: committed {again.committed}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/store")
