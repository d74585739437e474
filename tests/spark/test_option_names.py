"""An option that is unknown: said as early as Spark asks, with the near name, as the last word."""

import pytest

from eoslog.spark.failure_reason import reason_of

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


def wrong_read(reader, store_path, **options):
    wanted = {"store": str(store_path), "subscribe": "orders", **options}
    return reader.format("eoslog").options(**wanted)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("way", ["read", "readStream"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("startngOffsets", "startngoffsets is unknown to eoslog's read: did you mean startingOffs"),
        ("maxOffsetsPerTriger", "did you mean maxOffsetsPerTrigger?"),
        ("topic", "option topic is unknown to eoslog's read: known are "),
        ("txnVersion", "option txnversion is unknown to eoslog's read: known are "),
    ],
)
def test_an_unknown_option_of_a_read_is_said_at_load(spark, store_path, way, name, words):
    with pytest.raises(Exception, match="ValueError") as caught:
        wrong_read(getattr(spark, way), store_path, **{name: "1"}).load()
    assert words in reason_of(caught.value)


@pytest.mark.every_nth(4)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startngOffsets": "earliest"}, "did you mean startingOffsets?"),
        ({"startingOffsets": "earlest"}, "startingOffsets"),
        ({"endingOffsets": "latest"}, "a streaming read has no end"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
    ],
)
def test_a_stream_that_cannot_be_read_says_why(spark, store_path, tmp_path, options, words):
    """With a schema Spark asks eoslog for nothing at load, and later stops what it did not make."""
    frame = wrong_read(spark.readStream, store_path, **options).schema("value binary").load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        with pytest.raises(Exception, match="ValueError") as caught:
            query.awaitTermination()
    finally:
        query.stop()
    assert words in reason_of(caught.value)
    assert "UnboundLocalError" not in str(caught.value)


def test_an_unknown_option_of_a_write_is_said_before_a_task_runs(spark, store_path):
    rows = spark.range(1).selectExpr("raise_error('a task ran') AS value")
    with pytest.raises(Exception, match="did you mean topic") as caught:
        rows.write.format("eoslog").options(store=str(store_path), topc="orders").mode(
            "append"
        ).save()
    assert "a task ran" not in str(caught.value)
