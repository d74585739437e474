"""The Python of docs/spark.md runs as it stands, and its tables name the options there are."""

import re
from pathlib import Path

import pytest
from read_back import records_in

import eoslog

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = 50


@pytest.mark.long
@pytest.mark.spark
def test_the_code_of_the_page_runs(spark, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 10
    rows = {"customer": [f"c{number % 7}" for number in range(ROWS)], "cents": list(range(ROWS))}
    parquet.write_table(pa.table(rows), tmp_path / "orders.parquet")
    monkeypatch.chdir(tmp_path)
    # Spark's own working directory is another one.
    code = "\n".join(blocks).replace('"orders.parquet"', repr(f"file://{tmp_path}/orders.parquet"))
    names = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), names)
    assert min(row.offset for row in names["newest"].collect()) == 1
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")  # Other tests have the session too.
    store = tmp_path / "data"
    # No query of the page calls it.
    names["land_in_threads"](spark.createDataFrame([("one",)], "value string"), 0)
    for topic in ("left", "right"):
        assert len(records_in(store, topic)) == 1
    # By two batches and mapInArrow; by mapPartitions and foreachPartition.
    assert len(records_in(store, "orders")) == 3 * ROWS + 2 * 1000
    assert len(records_in(store, "numbers")) == 1000
    # A stream, foreachBatch with one key for each customer, and a copy there and back.
    assert len(records_in(store, "copies")) == ROWS
    counts = {record.key: int(record.value) for record in records_in(store, "counts")}
    assert counts == {b"c%d" % number: 2 * len(range(number, ROWS, 7)) for number in range(7)}
    assert len(records_in(store, "restored")) == 3 * ROWS + 2 * 1000


@pytest.mark.long
@pytest.mark.spark
def test_the_readme_writes_a_frame(spark, tmp_path):
    readme = PAGE.parents[1].joinpath("README.md").read_text(encoding="utf-8")
    block = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[3]
    with eoslog.open(tmp_path, create=True) as store:
        store.create_topic("flights")
    frame = spark.createDataFrame([("one",), ("two",)], "value string")
    exec(block.replace("/srv/store", str(tmp_path)), {"df": frame})
    assert {record.value for record in records_in(tmp_path, "flights")} == {b"one", b"two"}


@pytest.mark.long
@pytest.mark.spark
def test_the_calls_for_those_who_come_from_kafka(spark, tmp_path):
    page = PAGE.with_name("coming-from.md").read_text(encoding="utf-8")
    calls = re.findall(r"^\|.* \| `((?:spark|df)\..*)` \|$", page, re.MULTILINE)
    with eoslog.open(tmp_path, create=True) as store:
        store.create_topic("orders")
    df = spark.createDataFrame([("one",), ("two",)], "value string")
    names = {"spark": spark, "df": df, "path": str(tmp_path)}
    assert len(calls) == 4
    eval(calls.pop(), names)
    assert {record.value for record in records_in(tmp_path, "orders")} == {b"one", b"two"}
    read, read_with_kafkas_option, stream = (eval(call, names) for call in calls)
    assert read.count() == read_with_kafkas_option.count() == 2
    assert stream.isStreaming


def options_in_table(first, after):
    """The option names in the first column of the table that follows a line of the page."""
    table = TEXT[TEXT.index(first) : TEXT.index(after)]
    return re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)


def test_the_tables_of_options_are_those_of_the_code():
    pytest.importorskip("pyspark")
    from eoslog.spark.sink.batch_writer import BATCH_OPTIONS
    from eoslog.spark.source.read_options import KNOWN_OPTIONS
    from eoslog.spark.source_options import STORE_OPTIONS

    assert options_in_table("Of every use:", "Of reads:") == list(STORE_OPTIONS)
    for found, known in (
        (options_in_table("Of reads:", "Of writes:"), KNOWN_OPTIONS),
        (options_in_table("Of writes:", "## Partition writers"), BATCH_OPTIONS),
    ):
        assert len(found) == len(set(found))
        assert set(found) == known


def test_the_tests_that_the_page_names_are_there():
    named = set(re.findall(r"`(?:tests/spark/)?(test_\w+\.py)`", TEXT))
    assert named
    assert [name for name in sorted(named) if not Path(__file__).with_name(name).exists()] == []
