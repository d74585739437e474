"""A Spark stream from one topic to another, stopped in the middle of its work and started again.

The checkpoint keeps how far the stream has read, the store which micro-batches are in: whatever is
run again between the two, each order gets its bill once.
"""

import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import eoslog
from eoslog.spark import session

ORDERS = 10_000


def place_orders(store_path: str) -> None:
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", partitions=4)
        with store.producer() as producer:
            for number in range(ORDERS):
                producer.send("orders", key=b"customer %d" % (number % 100), value=b"%d" % number)


def bills(spark: SparkSession, store_path: str) -> DataStreamWriter:
    """The stream: every order that there is and will be, some thousand at a time."""
    orders = (
        spark.readStream.format("eoslog")
        .option("store", store_path)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2_000)
        .load()
    )
    return (
        orders.selectExpr("key", "concat('bill for order ', CAST(value AS STRING)) AS value")
        .writeStream.format("eoslog")
        .option("store", store_path)
        .option("topic", "bills")
        .option("partitions", 2)
        .option("checkpointLocation", f"{store_path}-checkpoint")
    )


def count_bills(spark: SparkSession, store_path: str) -> tuple[int, int]:
    """All bills, and different ones."""
    read = spark.read.format("eoslog").option("store", store_path).option("subscribe", "bills")
    texts = read.load().selectExpr("CAST(value AS STRING) AS value")
    return texts.count(), texts.distinct().count()


def main(store_path: str) -> None:
    place_orders(store_path)
    spark = session("stream to a topic")
    query = bills(spark, store_path).start()
    while query.isActive and not query.recentProgress:
        time.sleep(0.1)
    query.stop()  # In the middle of a micro-batch, most likely.
    written, different = count_bills(spark, store_path)
    print(f"stopped: {written} bills, different: {different}")

    bills(spark, store_path).trigger(availableNow=True).start().awaitTermination()
    written, different = count_bills(spark, store_path)
    spark.stop()
    print(f"each of {ORDERS} orders has its bill, once: {written == different == ORDERS}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(str(Path(sys.argv[1]).absolute()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/store")
