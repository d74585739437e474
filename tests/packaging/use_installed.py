"""Run by check_wheel.sh in a fresh environment: what is installed, and a commit before a kill.

Usage: use_installed.py STORE, a folder that does not exist yet.
"""

import importlib
import importlib.metadata
import os
import pkgutil
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import eoslog
from eoslog import TopicPartition
from eoslog.bindings import crc32c_testing

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


def sections_of(module: Path) -> set[str]:
    """The names of an ELF file's sections; it is a little-endian one of 64 bits."""
    elf = module.read_bytes()
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", elf, 58)
    entries = [struct.unpack_from("<IIQQQQ", elf, table + entry_bytes * n) for n in range(count)]
    _, _, _, _, names_at, names_bytes = entries[names_index]
    names = elf[names_at : names_at + names_bytes]
    return {names[entry[0] : names.index(b"\0", entry[0])].decode() for entry in entries}


def check_modules_import(package: Path) -> None:
    modules = sorted(package.rglob("*.so"))
    assert modules, "the wheel holds no extension module"
    for path in modules:
        sections = sections_of(path)
        assert ".text" in sections, f"{path} has sections {sorted(sections)}"
        kept = {name for name in sections if re.match(r"\.(debug|zdebug|symtab|strtab)", name)}
        assert kept == set(), f"{path} is not stripped: it has {sorted(kept)}"
        importlib.import_module(f"eoslog.{path.parent.name}.{path.name.split('.')[0]}")


def check_metadata() -> None:
    """Linux and no other system, and the same C library wherever the wheel is built."""
    metadata = importlib.metadata.metadata("eoslog")
    systems = [line for line in metadata.get_all("Classifier", []) if "Operating System" in line]
    assert systems == ["Operating System :: POSIX :: Linux"], systems
    wheel = importlib.metadata.distribution("eoslog").read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (.*)", wheel, re.MULTILINE)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert tags == [f"{python}-{python}-manylinux_2_34_{os.uname().machine}"], tags


def check_checksum_is_the_processors() -> None:
    """A compiler that lacks the instructions leaves the table, which is ten times slower."""
    assert crc32c_testing.chosen() != "table", crc32c_testing.implementations()


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


def commit_and_die(store_path: str) -> None:
    store = eoslog.open(store_path, create=True)
    store.create_topic("orders", partitions=1)
    producer = store.producer(transactional_id="importer")
    producer.init_transactions()
    with producer.transaction():
        producer.send("orders", value=b"committed", key=b"key", partition=0)
    producer.begin_transaction()
    producer.send("orders", value=b"open", key=b"key", partition=0)
    producer.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def check_recovery(store_path: str) -> None:
    """What a killed process committed is there, once, and of its open transaction nothing."""
    died = subprocess.run([sys.executable, __file__, store_path, "die"], check=False)
    assert died.returncode == -signal.SIGKILL, died.returncode
    with eoslog.open(store_path) as store:
        producer = store.producer(transactional_id="importer")
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", value=b"recovered", partition=0)
        consumer = store.consumer()
        consumer.assign([TopicPartition("orders", 0)])
        values = []
        while len(values) < 2:
            records = consumer.poll(timeout=5.0)
            assert records, values
            values += [record.value for record in records]
    assert values == [b"committed", b"recovered"], values


def main() -> None:
    if sys.argv[2:] == ["die"]:
        commit_and_die(sys.argv[1])
    package = Path(eoslog.__file__).parent
    check_installed_alone()
    check_metadata()
    check_contents(package)
    check_modules_import(package)
    check_checksum_is_the_processors()
    check_spark_finds_the_data_source()
    check_pytest_finds_the_plugin()
    check_recovery(sys.argv[1])


if __name__ == "__main__":
    main()
