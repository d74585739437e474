"""What is in a store, read with a consumer: never what a writer says is in it."""

import os
from pathlib import Path

import eoslog
from eoslog import Record, TopicPartition
from eoslog.staging.names import TRASH_DIRECTORY


def records_in(store_path: Path, topic: str = "orders") -> list[Record]:
    """Every record of a topic, partition by partition, in the order of offsets."""
    with eoslog.open(store_path) as store:
        count = store.topics()[topic].partitions
        found: list[Record] = []
        with store.consumer() as consumer:
            for number in range(count):
                consumer.assign([TopicPartition(topic, number)])
                while records := consumer.poll(timeout=0.0, max_records=100_000):
                    found += records
    return found


def values_in(store_path: Path, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in records_in(store_path, topic)]


def numbers_in(store_path: Path, topic: str = "orders") -> list[int]:
    """The values as numbers, sorted: `list(range(n))` if each of n rows is there once."""
    return sorted(int(value or b"-1") for value in values_in(store_path, topic))


def staged_files(store_path: Path) -> list[Path]:
    """What a decision could find below the staging directory."""
    staging = store_path / "staging"
    # What was put away is being removed meanwhile: `os.walk` passes over what is gone.
    found = (Path(folder) / name for folder, _, names in os.walk(staging) for name in names)
    return [path for path in found if staging / TRASH_DIRECTORY not in path.parents]
