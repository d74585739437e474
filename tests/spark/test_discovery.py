"""Spark finds the format `eoslog` by itself; registering it by hand works as well."""

import os
import pkgutil
import subprocess
import sys

import pytest
from read_back import numbers_in

# Sessions that have never heard of eoslog but for what is installed.
FRESH = """
import sys
from pyspark.sql import SparkSession


def land_and_read(spark, store):
    rows = spark.range(0, 10, 1, 1).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("eoslog").option("topic", "orders").mode("append").save(store)
    print("read", spark.read.format("eoslog").option("subscribe", "orders").load(store).count())


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
found = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
land_and_read(found, sys.argv[1])
assert "eoslog.spark" not in sys.modules

from eoslog.spark import EoslogDataSource

registered = found.newSession()
registered.dataSource.register(EoslogDataSource)
land_and_read(registered, sys.argv[1])
"""


@pytest.mark.soak
@pytest.mark.spark
def test_a_fresh_session_knows_the_format_and_another_by_hand(store_path):
    pytest.importorskip("pyspark")
    from eoslog.spark import JavaNotFoundError, find_java

    try:
        java = find_java()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    environment = {**os.environ, "JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        [sys.executable, "-c", FRESH, store_path],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["read", "10", "read", "20"]
    assert numbers_in(store_path) == sorted([*range(10), *range(10)])


@pytest.mark.spark
def test_a_session_that_found_it_may_have_it_registered_too(spark, store_path):
    from eoslog.spark import EoslogDataSource

    for _ in range(2):
        rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("eoslog").option("topic", "orders").mode("append").save(str(store_path))
        spark.dataSource.register(EoslogDataSource)
    assert numbers_in(store_path) == [0, 0, 1, 1, 2, 2]


def test_the_package_that_spark_looks_for_can_be_listed():
    """An import alone is not enough: Spark goes by what pkgutil lists."""
    assert "pyspark_eoslog" in {found.name for found in pkgutil.iter_modules()}


def test_its_import_loads_nothing_of_the_store():
    pytest.importorskip("pyspark")
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_eoslog\n"
        "print(*(name.split('.')[0] for name in sorted(set(sys.modules) - before)))\n"
        "print(pyspark_eoslog.DefaultSource.name())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    imported, name = answer.stdout.splitlines()
    assert name == "eoslog"
    assert not {"lmdb", "numpy", "pandas", "pyarrow"} & set(imported.split())


def test_where_eoslog_cannot_be_used_its_import_fails_quietly():
    """Otherwise no session would find any Python data source."""
    code = (
        "import sys; sys.modules['eoslog.spark.data_source'] = None\n"
        "import pyspark_eoslog; print(hasattr(pyspark_eoslog, 'DefaultSource'))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "False\n"
    assert "Spark will not know the format eoslog" in answer.stderr
