"""Write records with keys into a topic, and read them back: all, from an offset, from a time on."""

import sys
import tempfile

import eoslog
from eoslog import TopicPartition


def main(store_path: str) -> None:
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", partitions=3, exist_ok=True)
        with store.producer() as producer:
            for number in range(1_000):
                # Records with the same key go to the same partition, where they keep their order.
                producer.send(
                    "orders",
                    value=b"order %d" % number,
                    key=b"customer %d" % (number % 20),
                    timestamp_ms=1_700_000_000_000 + number,
                )
            producer.flush()  # What was sent before survives a power cut from here on.

        targets = [TopicPartition("orders", number) for number in range(3)]
        with store.consumer() as consumer:
            consumer.assign(targets)
            count = 0
            while records := consumer.poll(timeout=0.0, max_records=500):
                count += len(records)
            print(f"{count} records read")

            first = targets[0]
            consumer.assign([first])
            consumer.seek(first, 5)
            record = consumer.poll(timeout=0.0, max_records=1)[0]
            print(f"offset 5 of {first}: {record.key!r} {record.value!r}")

            found = consumer.offsets_for_times({first: 1_700_000_000_500})
            print(f"the first record of {first} from that time on: {found[first]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/store")
