"""Land a Spark DataFrame in a topic, all at once and once only, however often the job is run."""

import sys
import tempfile

import eoslog
from eoslog import TopicPartition
from eoslog.spark import session, write_partitions


def main(store_path: str) -> None:
    spark = session("land a dataframe")  # Any SparkSession of yours will do as well.
    with eoslog.open(store_path, create=True) as store:
        orders = spark.range(100_000).selectExpr(
            "concat('customer-', id % 500) AS key",
            "to_json(named_struct('order', id, 'cents', id * 7 % 10000)) AS value",
        )
        # Tonight's job. app_id and version name it for ever: a second run finds it done.
        for attempt in ("the job", "the same job again"):
            result = write_partitions(
                orders, store, "orders", partitions=4, app_id="nightly", version=20260131
            )
            print(f"{attempt}: committed {result.committed}, {result.records} records")

        targets = [TopicPartition("orders", number) for number in range(4)]
        with store.consumer() as consumer:
            ends = consumer.end_offsets(targets)
        print(f"{sum(ends.values())} records in the topic")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/store")
