"""Batches that another client compressed: whole, kept, and named by every reader."""

import pytest
from cli_calls import DONE, FAILED, call
from reference_model import batch_codec as codec

from eoslog import TopicPartition, errors
from eoslog.bindings.record_batch import decode_records
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.state_key import state_partition_of

CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
EVERY_CODEC = pytest.mark.parametrize("number", CODECS, ids=CODECS.values())
WHERE = TopicPartition("orders", 0)
BASE_MS = 1_700_000_000_000


def compressed(number, values=(b"c",), **identity):
    return codec.compress_batch(codec.simple_batch(values, **identity), number)


def plant(store_path, *batches, directory="orders-0"):
    """Put batches behind what a closed store's partition holds."""
    path = store_path / directory / f"{0:020d}.log"
    with path.open("ab") as file:
        for batch in batches:
            file.write(batch)
    return path


def lose_clean_stop(store_path):
    (store_path / ".kafka_cleanshutdown").unlink()


@pytest.fixture
def planted(store_path, open_store):
    """A store with a plain record, a compressed batch of two records, and a plain record."""

    def plant_it(number=1, clean=True):
        with open_store() as store:
            store.create_topic("orders")
            engine_of(store).partition(*WHERE).append_columns([b"a"], timestamps=[BASE_MS - 5])
        plant(
            store_path,
            compressed(number, [b"b", b"c"], base_offset=1),
            codec.simple_batch([b"d"], base_offset=3),
        )
        if not clean:
            lose_clean_stop(store_path)
        return open_store()

    return plant_it


def refusal(number):
    return pytest.raises(
        errors.UnsupportedCompressionTypeError,
        match=f"compressed with {CODECS[number]}: this version cannot read it",
    )


@EVERY_CODEC
def test_an_append_of_a_compressed_batch_is_refused(store, number):
    store.create_topic("orders")
    with refusal(number) as caught:
        store.partition(*WHERE).append_batch(compressed(number))
    error = caught.value
    assert (error.code, error.outcome, error.codec) == (76, "not_appended", CODECS[number])
    assert (error.retriable, error.abortable, error.fatal) == (False, False, False)
    assert store.partition(*WHERE).log_end_offset == 0


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@EVERY_CODEC
def test_a_consumer_gets_what_is_before_and_then_the_error(planted, store_path, number, clean):
    store = planted(number, clean)
    assert store.partition(*WHERE).log_end_offset == 4
    with store.consumer() as consumer:
        consumer.assign([WHERE])
        assert [one.value for one in consumer.poll(timeout=0)] == [b"a"]
        for _ in range(2):
            with refusal(number) as caught:
                consumer.poll(timeout=0)
        assert caught.value.path == str(next((store_path / "orders-0").glob("*.log")))
        assert caught.value.position_bytes > 0
        consumer.seek(WHERE, 3)
        assert [one.value for one in consumer.poll(timeout=0)] == [b"d"]


def test_every_way_to_read_names_it(planted):
    store = planted()
    partition = engine_of(store).partition(*WHERE)
    with store.consumer() as consumer:
        consumer.assign([WHERE])
        assert consumer.poll_arrow().num_rows == 1
        with refusal(1):
            consumer.poll_arrow()
        assert consumer.offsets_for_times({WHERE: BASE_MS - 5})[WHERE].offset == 0
        assert consumer.offsets_for_times({WHERE: BASE_MS + 1})[WHERE] is None
        with refusal(1):
            consumer.offsets_for_times({WHERE: BASE_MS})
    assert decode_records(partition.read(0))[0].value == b"a"
    with refusal(1):
        partition.read(1)
    with refusal(1):
        partition.read(2)
    with refusal(1):
        partition.fetch_records(2, 10, 1 << 20)
    with refusal(1):
        partition.fetch_columns(2, 1 << 20)
    assert [one.compression for one in partition.read_headers(0)] == ["none", "gzip", "none"]
    with refusal(1):
        decode_records(compressed(1))


def test_a_reader_of_decided_data_passes_an_aborted_one(store_path, open_store):
    with open_store() as store:
        store.create_topic("orders")
    identity = {"producer_id": 7, "producer_epoch": 0}
    plant(
        store_path,
        compressed(1, base_sequence=0, attributes=codec.TRANSACTIONAL, **identity),
        codec.encode_marker(codec.ABORT, coordinator_epoch=0, offset=1, **identity),
        codec.simple_batch([b"d"], base_offset=2),
    )
    store = open_store()
    with store.consumer(isolation_level="read_committed") as consumer:
        consumer.assign([WHERE])
        assert [one.value for one in consumer.poll(timeout=0)] == [b"d"]
    assert store.partition(*WHERE).read(0, isolation_level="read_committed")
    with refusal(1):
        store.partition(*WHERE).read(0)


def test_lag_is_counted_without_a_look_at_the_records(planted):
    store = planted()
    with store.consumer(group="g") as consumer:
        consumer.assign([WHERE])
        consumer.commit({WHERE: 1})
        assert consumer.lag(WHERE) == 3


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_recovery_and_repair_keep_it_and_verify_says_what_it_is(planted, store_path, clean):
    planted(4, clean).close()
    before = (store_path / "orders-0" / f"{0:020d}.log").read_bytes().rstrip(b"\0")
    said = call("verify", "--store", store_path)
    assert said.status == FAILED
    assert "compressed with zstd: this version cannot read it" in said.stdout
    assert "1 problem: 4 records" in said.stdout
    for options in (["--dry-run"], []):
        said = call("verify", "--repair", *options, "--store", store_path)
        assert "damaged" not in said.stdout
        assert "refused:" not in said.stdout
    assert said.status == FAILED
    assert "compressed with zstd: this version cannot read it" in said.stdout
    assert (store_path / "orders-0" / f"{0:020d}.log").read_bytes().rstrip(b"\0") == before


def test_verify_counts_them_in_one_problem_of_each_partition(store_path, open_store):
    with open_store() as store:
        store.create_topic("orders", partitions=2)
        for number in (0, 1):
            engine_of(store).partition("orders", number).append_columns([b"a"])
    for number in (0, 1):
        batches = [compressed(1, [b"b"], base_offset=1 + one) for one in range(3 - number)]
        batches.append(codec.simple_batch([b"d"], base_offset=9))
        with (store_path / f"orders-{number}" / f"{0:020d}.log").open("ab") as file:
            file.write(b"".join(batches))
    with open_store() as store:
        reasons = [str(one["reason"]) for one in store.verify()]
    of_compressed = [one for one in reasons if one.startswith("compressed")]
    said = "compressed with gzip: this version cannot read it; so are"
    assert of_compressed == [
        f"{said} 2 more batches of the partition",
        f"{said} 1 more batch of the partition",
    ]
    assert [one for one in reasons if one not in of_compressed] == [
        "offsets 4 to 8 are missing",
        "offsets 3 to 8 are missing",
    ]


def test_a_damaged_one_is_damage(planted, store_path):
    planted().close()
    path = store_path / "orders-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-codec_bytes(data) - 1] ^= 1
    path.write_bytes(data)
    said = call("verify", "--store", store_path)
    assert "checksum" in said.stdout
    assert "compressed" not in said.stdout


def codec_bytes(data):
    """Bytes of the last batch of the planted store."""
    return len(codec.simple_batch([b"d"]))


def test_it_counts_for_its_producer(store_path, open_store):
    """Epoch and sequences stand in the header; a retry is known, and the next one follows."""
    with open_store() as store:
        store.create_topic("orders")
    plant(
        store_path,
        compressed(1, [b"a", b"b"], producer_id=7, producer_epoch=3, base_sequence=0),
    )
    lose_clean_stop(store_path)
    with open_store() as store:
        partition = store.partition(*WHERE)
        identity = {"producer_id": 7, "producer_epoch": 3}
        retry = codec.simple_batch([b"a", b"b"], base_sequence=0, **identity)
        assert partition.append_batch(retry).duplicate
        with pytest.raises(errors.OutOfOrderSequenceError):
            partition.append_batch(codec.simple_batch([b"d"], base_sequence=4, **identity))
        following = codec.simple_batch([b"c"], base_sequence=2, **identity)
        assert partition.append_batch(following).base_offset == 2
        assert [one["reason"] for one in store.verify()] == [
            "compressed with gzip: this version cannot read it"
        ]


def test_dump_prints_its_header_and_what_comes_after_it(planted, store_path):
    planted().close()
    path = str(store_path / "orders-0" / f"{0:020d}.log")
    said = call("dump", path)
    assert said.status == DONE
    assert "compresscodec: gzip" in said.stdout
    said = call("dump", "--deep", path)
    assert said.status == FAILED
    assert said.stdout.count("baseOffset") == 3
    assert "payload: d" in said.stdout
    assert "compressed with gzip: this version cannot read it" in said.stderr


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_one_in_an_internal_topic_is_named_by_whoever_needs_it(
    store_path, open_store, topic, clean
):
    with open_store() as store:
        store.create_topic("orders")
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"v", partition=0)
            producer.send_offsets_to_transaction({WHERE: 1}, "g")
    number = state_partition_of("id" if topic == "__transaction_state" else "g")
    directory = store_path / f"{topic}-{number}"
    with open_store() as store:
        end = parts_of(store).files.partitions.internal_partition(topic, number).log_end_offset
    plant(store_path, compressed(1, base_offset=end), directory=directory.name)
    before = next(directory.glob("*.log")).read_bytes()
    if not clean:
        lose_clean_stop(store_path)

    def use():
        with open_store() as store:
            with store.consumer(group="g") as consumer:
                consumer.assign([WHERE])
                consumer.committed(WHERE)
            store.describe_transaction("id")
            store.producer(transactional_id="id").init_transactions()

    with refusal(1) as caught:
        use()
    assert directory.name in caught.value.path
    assert next(directory.glob("*.log")).read_bytes().rstrip(b"\0") == before.rstrip(b"\0")


def test_consume_prints_what_is_before_and_names_it(planted, store_path):
    planted().close()
    said = call("consume", "orders", "--store", store_path)
    assert said.status == FAILED
    assert said.stdout == "a\n"
    assert "compressed with gzip: this version cannot read it" in said.stderr
