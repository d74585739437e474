"""Run by check_wheel.sh in a fresh environment: what is installed, and one record there and back.

Usage: use_installed.py STORE, a folder that does not exist yet.
"""

import importlib
import importlib.metadata
import pkgutil
import sys
from pathlib import Path

import eoslog
from eoslog import TopicPartition

ALLOWED = {"eoslog", "lmdb", "numpy", "pip", "setuptools"}
SHIPPED = [
    "py.typed",
    "native/crc32c.pxd",
    "native/include/crc32c.h",
    "bindings/partition_log.pyi",
]


def check_installed_alone() -> None:
    names = {found.metadata["Name"].lower() for found in importlib.metadata.distributions()}
    assert names <= ALLOWED, f"more is installed than eoslog requires: {sorted(names - ALLOWED)}"


def check_contents(package: Path) -> None:
    missing = [name for name in SHIPPED if not (package / name).is_file()]
    assert missing == [], f"the wheel lacks {missing}"
    strays = [path for ending in ("*.pyx", "*.c") for path in package.rglob(ending)]
    assert strays == [], f"the wheel holds sources that nobody needs: {strays}"


def check_modules_import(package: Path) -> None:
    modules = sorted(package.glob("native/*.so")) + sorted(package.glob("bindings/*.so"))
    assert modules, "the wheel holds no extension module"
    for path in modules:
        assert b".debug_info" not in path.read_bytes(), f"{path} has debug information"
        importlib.import_module(f"eoslog.{path.parent.name}.{path.name.split('.')[0]}")


def check_spark_finds_the_data_source() -> None:
    """Spark imports all packages of such names; without pyspark nothing comes of it.

    tests/spark/test_discovery.py has the same with Spark.
    """
    assert "pyspark_eoslog" in {found.name for found in pkgutil.iter_modules()}
    assert not hasattr(importlib.import_module("pyspark_eoslog"), "DefaultSource")


def check_pytest_finds_the_plugin() -> None:
    """tests/unit/testing has the same with pytest, which is not installed here."""
    found = {one.value for one in importlib.metadata.entry_points(group="pytest11")}
    assert found == {"pytest_eoslog"}, found
    assert "pytest_eoslog" in {one.name for one in pkgutil.iter_modules()}


def check_round_trip(store_path: str) -> None:
    partition = TopicPartition("orders", 0)
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", partitions=1)
        producer = store.producer()
        producer.send("orders", value=b"value", key=b"key", partition=0)
        producer.flush()
        producer.close()
    with eoslog.open(store_path) as store:
        consumer = store.consumer()
        consumer.assign([partition])
        records = consumer.poll(timeout=5.0)
    assert [(record.offset, record.key, record.value) for record in records] == [
        (0, b"key", b"value")
    ], records


def main() -> None:
    package = Path(eoslog.__file__).parent
    check_installed_alone()
    check_contents(package)
    check_modules_import(package)
    check_spark_finds_the_data_source()
    check_pytest_finds_the_plugin()
    check_round_trip(sys.argv[1])


if __name__ == "__main__":
    main()
