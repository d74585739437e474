"""A producer with a name knows how far it came, also after a SIGKILL at any moment.

The script starts itself as a child that copies numbers into a topic, and kills it a few times. Each
new child asks the store where to go on; at the end every number is there once.
"""

import random
import subprocess
import sys
import tempfile
import time

import eoslog
from eoslog import TopicPartition

NUMBERS = 60_000
KILLS = 5


def load(store_path: str) -> None:
    """Append the numbers that are not there yet."""
    with eoslog.open(store_path) as store, store.producer(name="loader") as producer:
        # The count of records that this name ever put there is the place to go on at.
        for number in range(producer.next_sequence("numbers", 0), NUMBERS):
            producer.send("numbers", value=b"%d" % number, partition=0)
            if number % 500 == 0:
                producer.flush()


def main(store_path: str) -> None:
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("numbers", exist_ok=True)
    killed = 0
    for attempt in range(KILLS + 1):
        child = subprocess.Popen([sys.executable, __file__, "--load", store_path])
        if attempt < KILLS:
            time.sleep(random.uniform(0.2, 0.6))
            killed += child.poll() is None
            child.kill()
        if child.wait() not in (0, -9):
            sys.exit("the child failed")

    with eoslog.open(store_path) as store, store.consumer() as consumer:
        consumer.assign([TopicPartition("numbers", 0)])
        found: list[int] = []
        while records := consumer.poll(timeout=0.0, max_records=10_000):
            found += [int(record.value or b"-1") for record in records]
    exact = found == list(range(NUMBERS))
    print(f"killed {killed} times, {len(found)} records, each number once and in order: {exact}")
    sys.exit(0 if exact else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load(sys.argv[2])
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/store")
