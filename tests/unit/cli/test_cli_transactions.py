"""`eoslog transactions`: Kafka's columns, and an end to what is left open."""

import time

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import TopicPartition
from eoslog.cli import transactions as cli_transactions
from eoslog.store.store import engine_of
from eoslog.transactions.admin import TransactionDescription

MINUTE_MS = 60_000
PAYMENTS = TopicPartition("orders", 1)


@pytest.fixture
def store_path(tmp_path):
    """One id that committed, one that aborted, one whose transaction is prepared."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=2)
        for name, ends in (("a-commit", "commit"), ("b-abort", "abort"), ("c-prepared", None)):
            producer = store.producer(transactional_id=name)
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", value=name.encode(), partition=0)
            producer.send("orders", value=name.encode(), partition=1)
            producer.flush()
            if ends == "commit":
                producer.commit_transaction()
            elif ends == "abort":
                producer.abort_transaction()
            else:
                producer.prepare_transaction()
    return path


def ago(minutes):
    return time.time_ns() // 1_000_000 - minutes * MINUTE_MS


def hang(store_path, producer_id, *, minutes, partition=1, epoch=3):
    """Open a transaction of a producer that no coordinator knows: its first offset, and when."""
    timestamp_ms = ago(minutes)
    with eoslog.open(store_path) as store:
        result = (
            engine_of(store)
            .partition("orders", partition)
            .append_columns(
                [b"hanging"],
                timestamp_ms=timestamp_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
        )
    return result.base_offset, timestamp_ms


def table(answer):
    """The header and the rows of a table, as words."""
    assert answer.status == DONE, answer
    lines = [line.split() for line in answer.stdout.splitlines()]
    return lines[0], lines[2:]


def transactions(store_path, *arguments, **options):
    return call("transactions", *arguments, "--store", store_path, **options)


def json_of(store_path, *arguments):
    answer = transactions(store_path, *arguments, "--json")
    assert answer.status == DONE, answer
    return answer.json


@pytest.mark.parametrize("subcommand", [("list",), ()])
def test_list_has_kafkas_columns(store_path, subcommand):
    header, rows = table(transactions(store_path, *subcommand))
    assert header == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("a-commit", "0", "CompleteCommit"),
        ("b-abort", "0", "CompleteAbort"),
        ("c-prepared", "0", "Ongoing"),
    ]
    assert len({row[2] for row in rows}) == 3


def test_list_as_json(store_path):
    first = json_of(store_path, "list")[0]
    assert list(first) == [
        "transactional_id",
        "coordinator_id",
        "producer_id",
        "transaction_state",
    ]
    assert first["transactional_id"] == "a-commit"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--state", "Ongoing"), ["c-prepared"]),
        (("--state", "CompleteAbort", "--state", "CompleteCommit"), ["a-commit", "b-abort"]),
        (("--transactional-id-pattern", ".-(abort|commit)"), ["a-commit", "b-abort"]),
        (("--transactional-id-pattern", "abort"), []),  # The whole id has to match.
        (("--duration-filter", 0), ["c-prepared"]),
        (("--duration-filter", 3_600_000), []),
        (("--duration-filter", -1), ["a-commit", "b-abort", "c-prepared"]),
        (("--producer-id", (1 << 40) - 1), []),
    ],
)
def test_list_can_be_narrowed(store_path, options, expected):
    time.sleep(0.002)  # Open for longer than 0 ms.
    found = json_of(store_path, "list", *options)
    assert [row["transactional_id"] for row in found] == expected


def test_a_store_without_transactions_lists_none(tmp_path):
    path = tmp_path / "empty"
    eoslog.open(path, create=True).close()
    assert json_of(path, "list") == []
    header, rows = table(transactions(path, "list"))
    assert (header[0], rows) == ("TransactionalId", [])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--transactional-id-pattern", "("), "regular expression"),
        (("--state", "Finished"), "Finished"),
        (("--duration-filter", "long"), "--duration-filter"),
    ],
)
def test_a_wrong_filter_is_wrong_use(store_path, options, word):
    assert_mistake(transactions(store_path, "list", *options), WRONG_USE, word)


def test_describe_has_kafkas_columns(store_path):
    before_ms = ago(0)
    header, (row,) = table(transactions(store_path, "describe", "--transactional-id", "c-prepared"))
    assert header == [
        *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"),
        *("TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs"),
        "TopicPartitions",
    ]
    assert (row[1], row[4], row[5], row[8]) == (
        "c-prepared",
        "Ongoing",
        "60000",
        "orders-0,orders-1",
    )
    assert int(row[6]) + int(row[7]) >= before_ms


def test_describe_says_none_where_nothing_is_open(store_path):
    _, (row,) = table(transactions(store_path, "describe", "--transactional-id", "a-commit"))
    assert row[4:8] == ["CompleteCommit", "60000", "None", "None"]
    assert len(row) == 8  # No partitions.


def test_a_description_row_is_what_kafka_prints():
    described = TransactionDescription(
        coordinator_id=0,
        transactional_id="a",
        producer_id=5,
        producer_epoch=2,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        current_transaction_start_time_ms=1_000,
        transaction_duration_ms=5_000,
        topic_partitions=[TopicPartition("t-x", 3), TopicPartition("u", 0)],
        prepared=False,
        owner=None,
    )
    assert cli_transactions.description_row(described) == [
        *(0, "a", 5, 2, "Ongoing", 60_000, 1_000, 5_000, "t-x-3,u-0"),
    ]


def test_describe_as_json_says_more(store_path):
    found = json_of(store_path, "describe", "--transactional-id", "c-prepared")
    assert found["topic_partitions"] == ["orders-0", "orders-1"]
    assert found["prepared"] is True
    found = json_of(store_path, "describe", "--transactional-id", "b-abort")
    assert (found["prepared"], found["topic_partitions"]) == (False, [])
    assert found["current_transaction_start_time_ms"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (("describe", "--transactional-id", "nobody"), FAILED, "nobody"),
        (("describe", "--transactional-id", ""), WRONG_USE, "empty"),
        (("describe",), WRONG_USE, "--transactional-id"),
        (("abort", "--transactional-id", "nobody"), FAILED, "TransactionalIdNotFoundError"),
        (("abort",), WRONG_USE, "--transactional-id"),
        (("abort", "--topic", "orders", "--partition", 0), WRONG_USE, "--start-offset"),
        (("abort", "--transactional-id", "a", "--topic", "b"), WRONG_USE, "excludes"),
        (
            ("abort", "--topic", "oders", "--partition", 0, "--start-offset", 0),
            *(FAILED, "oders"),
        ),
        (
            ("abort", "--topic", "orders", "--partition", 2, "--start-offset", 0),
            *(FAILED, "orders"),
        ),
        (("describe-producers", "--topic", "oders", "--partition", 0), FAILED, "oders"),
        (("describe-producers", "--topic", "orders", "--partition", 7), FAILED, "orders"),
        (("describe-producers", "--topic", "orders"), WRONG_USE, "--partition"),
        (
            ("describe-producers", "--topic", "__consumer_offsets", "--partition", 3),
            *(FAILED, "nothing was written"),
        ),
        (("find-hanging", "--partition", 0), WRONG_USE, "--topic"),
        (("find-hanging", "--topic", "oders"), FAILED, "oders"),
        (("find-hanging", "--topic", "orders", "--partition", 2), FAILED, "orders"),
        (("find-hanging", "--max-transaction-timeout", -1), WRONG_USE, "timeout"),
        (("frobnicate",), WRONG_USE, "frobnicate"),
    ],
)
def test_mistakes(store_path, arguments, status, word):
    assert_mistake(transactions(store_path, *arguments), status, word)


def test_describe_producers_has_kafkas_columns(store_path):
    start, timestamp_ms = hang(store_path, 77, minutes=1)
    header, rows = table(
        transactions(store_path, "describe-producers", "--topic", "orders", "--partition", 1)
    )
    assert header == [
        *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence"),
        *("LastTimestamp", "CurrentTransactionStartOffset"),
    ]
    by_id = {row[0]: row for row in rows}
    assert len(by_id) == 4
    assert by_id["77"] == ["77", "3", "-1", "0", str(timestamp_ms), str(start)]
    committed = min((row for row in rows if row[0] != "77"), key=lambda row: int(row[0]))
    assert int(committed[2]) >= 0
    assert committed[5] == "None"


def test_describe_producers_as_json(store_path):
    found = json_of(store_path, "describe-producers", "--topic", "orders", "--partition", 0)
    starts = [row["current_transaction_start_offset"] for row in found]
    assert starts.count(None) == 2


def test_a_partition_of_an_internal_topic_has_producers_too(store_path):
    with eoslog.open(store_path) as store:
        producer = store.producer(transactional_id="offsets")
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({TopicPartition("orders", 0): 1}, "group-1")
        store.create_topic("wide", partitions=1)
    numbers = [path.name.rpartition("-")[2] for path in store_path.glob("__consumer_offsets-*")]
    assert numbers
    arguments = ("describe-producers", "--topic", "__consumer_offsets", "--partition", numbers[0])
    (row,) = json_of(store_path, *arguments)
    assert row["current_transaction_start_offset"] is None


def test_find_hanging_has_kafkas_columns(store_path):
    start, timestamp_ms = hang(store_path, 77, minutes=16)
    header, (row,) = table(transactions(store_path, "find-hanging"))
    assert header == [
        *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch"),
        *("StartOffset", "LastTimestamp", "Duration(min)"),
    ]
    assert row[:6] == ["orders", "1", "77", "3", "-1", str(start)]
    assert row[6] == str(timestamp_ms)
    assert 16 <= int(row[7]) <= (ago(0) - timestamp_ms) // MINUTE_MS


@pytest.mark.parametrize(
    ("minutes", "options", "count"),
    [
        (14, (), 0),
        (16, (), 1),
        (16, ("--max-transaction-timeout", 17), 0),
        (2, ("--max-transaction-timeout", 1), 1),
        (16, ("--topic", "orders"), 1),
        (16, ("--topic", "orders", "--partition", 1), 1),
        (16, ("--topic", "orders", "--partition", 0), 0),
        (16, ("--topic", "other"), 0),
    ],
)
def test_what_hangs(store_path, minutes, options, count):
    with eoslog.open(store_path) as store:
        store.create_topic("other")
    hang(store_path, 77, minutes=minutes)
    found = json_of(store_path, "find-hanging", *options)
    assert [row["producer_id"] for row in found] == [77] * count


def test_a_prepared_transaction_does_not_hang(store_path):
    assert json_of(store_path, "find-hanging", "--max-transaction-timeout", 0) == []


def test_abort_of_a_hanging_transaction_lets_readers_pass(store_path):
    first, _ = hang(store_path, 76, minutes=1, partition=0)
    transactions(store_path, "abort", "--transactional-id", "c-prepared")
    with eoslog.open(store_path) as store:
        assert store.partition("orders", 0).last_stable_offset == first
    place = ("--topic", "orders", "--partition", 0, "--start-offset")
    end_before = log_end(store_path)
    answer = transactions(store_path, "abort", *place, first + 1)
    assert_mistake(answer, FAILED, str(first + 1), "InvalidTxnStateError")
    assert log_end(store_path) == end_before

    answer = transactions(store_path, "abort", *place, first)
    assert (answer.status, answer.stdout) == (
        DONE,
        f"aborted orders-0 from offset {first} on\n",
    )
    with eoslog.open(store_path) as store:
        log = engine_of(store).partition("orders", 0)
        assert log.last_stable_offset == log.log_end_offset == end_before + 1
        assert log.open_transactions() == []
        assert log.producer(76).producer_epoch == 3
        assert log.aborted_transactions(first, first)[-1].producer_id == 76
    assert json_of(store_path, "find-hanging", "--max-transaction-timeout", 0) == []


def log_end(store_path):
    with eoslog.open(store_path) as store:
        return store.partition("orders", 0).log_end_offset


def test_abort_as_json(store_path):
    start, _ = hang(store_path, 77, minutes=1)
    place = ("--topic", "orders", "--partition", 1, "--start-offset", start)
    assert json_of(store_path, "abort", *place) == {
        "aborted": {"topic": "orders", "partition": 1, "start_offset": start}
    }
    assert json_of(store_path, "abort", "--transactional-id", "a-commit") == {
        "aborted": {"transactional_id": "a-commit"}
    }


def test_abort_by_id_ends_what_is_prepared(store_path):
    answer = transactions(store_path, "abort", "--transactional-id", "c-prepared")
    assert (answer.status, answer.stdout) == (DONE, "aborted c-prepared\n")
    (row,) = json_of(store_path, "list", "--transactional-id-pattern", "c.*")
    assert row["transaction_state"] in ("CompleteAbort", "Empty")
    with eoslog.open(store_path) as store:
        for number in (0, 1):
            log = store.partition("orders", number)
            assert log.last_stable_offset == log.log_end_offset
        with store.consumer() as consumer:
            consumer.assign([PAYMENTS])
            assert [record.value for record in consumer.poll(0)] == [b"a-commit"]


def test_abort_by_id_raises_the_epoch(store_path):
    def epoch():
        return json_of(store_path, "describe", "--transactional-id", "a-commit")["producer_epoch"]

    before = epoch()
    transactions(store_path, "abort", "--transactional-id", "a-commit")
    assert epoch() > before
