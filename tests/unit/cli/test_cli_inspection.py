"""`eoslog dump`, `verify` and `producers`: what is in a store, and whether it is sound."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from reference_model import batch_codec as codec

import eoslog
from eoslog.store.store import engine_of

RECORDS = 10


@pytest.fixture
def store_path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("other")
        with store.producer(name="loader") as producer:
            for number in range(RECORDS):
                producer.send("orders", value=b"value %d" % number, key=b"k", partition=1)
                producer.flush()
    return path


@pytest.fixture
def log_path(store_path):
    (path,) = (store_path / "orders-1").glob("*.log")
    return path


def flip_a_byte(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_dump_prints_batches_as_kafkas_tool_does(log_path):
    answer = call("dump", log_path)
    lines = answer.stdout.splitlines()
    assert lines[:2] == [f"Dumping {log_path}", "Log starting offset: 0"]
    assert len(lines) == 2 + RECORDS
    assert lines[2].startswith("baseOffset: 0 lastOffset: 0 count: 1 baseSequence: 0 ")
    assert " isTransactional: false isControl: false " in lines[2]
    assert " deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: " in lines[2]
    assert lines[2].endswith(" isvalid: true")


def test_a_deep_dump_prints_records_behind_a_bar(log_path):
    lines = call("dump", "--deep", log_path).stdout.splitlines()
    assert len(lines) == 2 + 2 * RECORDS
    assert lines[3].startswith("| offset: 0 CreateTime: ")
    assert lines[3].endswith(
        " keySize: 1 valueSize: 7 sequence: 0 headerKeys: [] key: k payload: value 0"
    )


def test_dump_as_json(log_path):
    found = call("dump", "--json", "--deep", log_path).json_lines
    assert [fields["payload"] for fields in found if "payload" in fields] == [
        f"value {number}" for number in range(RECORDS)
    ]
    assert {fields["file"] for fields in found} == {str(log_path)}


def test_dump_of_every_file_of_a_partition(store_path):
    kinds = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    files = [path for path in (store_path / "orders-1").iterdir() if path.suffix in kinds]
    answer = call("dump", *files)
    assert answer.status == DONE
    for path in files:
        assert f"Dumping {path}" in answer.stdout


def test_dump_works_while_the_store_is_open(store_path, log_path):
    with eoslog.open(store_path) as store, store.producer() as producer:
        producer.send("orders", value=b"one more", partition=1)
        producer.flush()
        found = call("dump", "--json", "--deep", log_path).json_lines
    assert found[-1]["payload"] == "one more"


def test_dump_shows_a_damaged_batch_as_not_valid(log_path):
    flip_a_byte(log_path, 70)
    found = call("dump", "--json", log_path).json_lines
    assert [fields["isvalid"] for fields in found] == [False] + [True] * (RECORDS - 1)


def test_dump_of_what_is_no_log_is_a_failure_with_its_place(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"this is no log" * 100)
    assert_mistake(call("dump", path), FAILED, str(path), "at byte 0", "CorruptRecordError")


@pytest.mark.parametrize("failure", ["compressed", "damaged", "missing"])
def test_a_file_that_fails_keeps_no_other_from_being_dumped(tmp_path, log_path, failure):
    path = tmp_path / "00000000000000000000.log"
    packed = codec.compress_batch(codec.simple_batch([b"x"]), 1)
    if failure != "missing":
        path.write_bytes(packed if failure == "compressed" else b"this is no log" * 100)
    whole = call("dump", "--deep", log_path)
    answer = call("dump", "--deep", path, log_path)
    assert_mistake(answer, FAILED, str(path))
    assert answer.stdout.endswith(whole.stdout)
    assert call("dump", "--deep", "--json", path, log_path).status == FAILED


@pytest.mark.parametrize("name", ["notes.txt", "orders.log", "orders.index"])
def test_dump_of_another_file_is_wrong_use(tmp_path, name):
    (tmp_path / name).write_bytes(b"x" * 8)
    answer = call("dump", tmp_path / name)
    assert_mistake(answer, WRONG_USE, name)
    assert answer.stdout == ""


def test_dump_of_a_missing_file_is_a_failure(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    assert_mistake(call("dump", path), FAILED, str(path))


def test_dump_of_nothing_is_wrong_use():
    assert_mistake(call("dump"), WRONG_USE, "FILES")


def test_verify_says_that_a_store_is_sound(store_path):
    answer = call("verify", "--store", store_path)
    assert answer.status == DONE
    assert answer.stdout.startswith(f"sound: {RECORDS} records in 3 partitions")
    found = call("verify", "--store", store_path, "--json").json
    assert found["sound"] is True
    assert (found["partitions"], found["records"], found["problems"]) == (3, RECORDS, [])


def test_verify_of_one_topic(store_path):
    found = call("verify", "--topic", "orders", "--store", store_path, "--json").json
    assert (found["partitions"], found["records"]) == (2, RECORDS)


def test_verify_finds_damage_and_says_where(store_path, log_path):
    flip_a_byte(log_path, 70)
    answer = call("verify", "--store", store_path)
    assert answer.status == FAILED
    assert f"{log_path} at byte 0" in answer.stdout
    found = call("verify", "--store", store_path, "--json")
    assert (found.status, found.json["sound"]) == (FAILED, False)
    assert found.json["problems"][0]["path"] == str(log_path)


def test_verify_of_an_unknown_topic_is_a_failure(store_path):
    answer = call("verify", "--topic", "oders", "--store", store_path)
    assert_mistake(answer, FAILED, "oders", "UnknownTopicOrPartitionError")


def test_producers(store_path):
    (row,) = call("producers", "--store", store_path, "--json").json
    assert (row["topic"], row["partition"], row["producer_epoch"]) == ("orders", 1, 0)
    assert (row["last_sequence"], row["last_offset"]) == (RECORDS - 1, RECORDS - 1)
    assert row["producer_id"] >= 0
    assert (row["coordinator_epoch"], row["current_txn_first_offset"]) == (-1, None)
    line = call("producers", "--store", store_path).stdout.splitlines()[-1]
    assert line.split()[:2] == ["orders", "1"]
    assert line.split()[-2:] == ["-1", "None"]


def test_producers_say_since_where_a_transaction_is_open(store_path):
    with eoslog.open(store_path) as store:
        engine_of(store).partition("orders", 0).append_columns(
            [b"v"], producer_id=77, producer_epoch=1, base_sequence=0, transactional=True
        )
    options = ("--topic", "orders", "--partition", 0, "--store", store_path)
    (row,) = call("producers", *options, "--json").json
    assert (row["producer_id"], row["current_txn_first_offset"]) == (77, 0)
    assert call("producers", *options).stdout.splitlines()[-1].split()[-2:] == ["-1", "0"]


def test_producers_of_a_topic_or_a_partition(store_path):
    def rows(*options):
        return call("producers", *options, "--store", store_path, "--json").json

    assert len(rows("--topic", "orders")) == 1
    assert rows("--topic", "orders", "--partition", 0) == []
    assert rows("--topic", "other") == []
    assert call("producers", "--topic", "other", "--store", store_path).status == DONE


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--partition", 0), WRONG_USE, "--topic"),
        (("--topic", "oders"), FAILED, "oders"),
        (("--topic", "orders", "--partition", 2), FAILED, "orders"),
    ],
)
def test_mistakes_in_asking_for_producers(store_path, options, status, words):
    assert_mistake(call("producers", *options, "--store", store_path), status, words)


def test_markers_of_transactions_are_no_records(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        for number in range(10):
            producer.begin_transaction()
            producer.send("t", b"v", partition=0)
            producer.flush()
            producer.abort_transaction() if number == 3 else producer.commit_transaction()
        with store.producer() as plain:
            plain.send("t", b"v", partition=0)
    for topic in ((), ("--topic", "t")):
        assert call("verify", "--store", path, *topic).stdout.startswith("sound: 11 records in 1")
        assert call("verify", "--store", path, *topic, "--json").json["records"] == 11
    assert call("topics", "--store", path, "--json").json == [
        {"topic": "t", "partitions": 1, "offsets": 21}
    ]
    assert call("topics", "--store", path).stdout.split()[:3] == ["topic", "partitions", "offsets"]


def test_records_below_the_start_of_a_log_are_not_counted(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        partition = engine_of(store).partition("t", 0)
        for _ in range(2):
            partition.append_columns([b"v"] * 10)
            partition.roll()
        counted = []
        for start, left in ((0, 20), (3, 17), (10, 10), (14, 6), (20, 0)):
            partition.log.advance_log_start(start)
            assert partition.verify(counted=counted.append) == []
            assert counted.pop() == left
