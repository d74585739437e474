"""`eoslog topics`: create, list, describe, alter, delete."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog.cli.topics import topic_config
from eoslog.common.config import TOPIC_SETTINGS


@pytest.fixture
def store_path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def orders(store_path):
    """A store with a topic that has records in its first partition."""
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", partitions=2)
        with store.producer() as producer:
            for number in range(10):
                producer.send("orders", value=b"%d" % number, partition=0)
    return store_path


def test_create_makes_the_store_and_the_topic(store_path):
    answer = call("topics", "create", "orders", "--partitions", 3, "--store", store_path)
    assert (answer.status, answer.stdout) == (DONE, "created orders with 3 partitions\n")
    assert answer.stderr == f"created a store at {store_path}\n"
    again = call("topics", "create", "more", "--store", store_path)
    assert (again.status, again.stderr) == (DONE, "")
    with eoslog.open(store_path) as store:
        assert store.topics()["orders"].partitions == 3


def test_create_with_settings_by_kafkas_names(store_path):
    answer = call(
        *("topics", "create", "orders", "--store", store_path, "--json"),
        *("--config", "segment.bytes=1048576", "--config", "max.message.bytes=2000"),
    )
    assert answer.json == {"topic": "orders", "partitions": 1}
    with eoslog.open(store_path) as store:
        config = store.topics()["orders"].config
    assert (config["segment.bytes"], config["max.message.bytes"]) == (1_048_576, 2_000)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("segment.bytes", ("NAME=VALUE",)),
        ("=3", ("NAME=VALUE",)),
        ("segment.byte=3000", ("segment.byte",)),
        ("segment.bytes=many", ("segment.bytes",)),
        ("segment.bytes=-1", ("segment.bytes",)),
    ],
)
def test_a_wrong_setting_is_wrong_use_and_nothing_is_made(store_path, pair, words):
    answer = call("topics", "create", "orders", "--config", pair, "--store", store_path)
    assert_mistake(answer, WRONG_USE, *words)
    assert not (store_path / "orders-0").exists()


@pytest.mark.parametrize("name", ["a b", "..", "x" * 250, "ü"])
def test_a_name_that_kafka_refuses_is_a_failure(store_path, name):
    answer = call("topics", "create", name, "--store", store_path)
    assert_mistake(answer, FAILED, "InvalidTopicError")


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_wrong_number_of_partitions_is_wrong_use(store_path, count):
    answer = call("topics", "create", "orders", "--partitions", count, "--store", store_path)
    assert_mistake(answer, WRONG_USE, "--partitions")
    assert not store_path.exists()


def test_a_topic_that_exists_is_a_failure(orders):
    answer = call("topics", "create", "orders", "--store", orders)
    assert_mistake(answer, FAILED, "TopicAlreadyExistsError", "orders")


@pytest.mark.parametrize("subcommand", [(), ("list",)])
def test_list(orders, subcommand):
    answer = call("topics", *subcommand, "--store", orders, "--json")
    assert answer.json == [{"topic": "orders", "partitions": 2, "offsets": 10}]
    text = call("topics", *subcommand, "--store", orders).stdout
    assert text.splitlines()[-1].split() == ["orders", "2", "10"]


def test_a_store_without_topics_lists_none(store_path):
    eoslog.open(store_path, create=True).close()
    assert call("topics", "--store", store_path, "--json").json == []
    assert call("topics", "--store", store_path).status == DONE


def test_describe(orders):
    answer = call("topics", "describe", "orders", "--store", orders, "--json")
    assert answer.json["topic"] == "orders"
    first, second = answer.json["partitions"]
    assert (first["partition"], first["log_start_offset"], first["log_end_offset"]) == (0, 0, 10)
    assert (first["high_watermark"], first["last_stable_offset"]) == (10, 10)
    assert first["size_bytes"] > 0
    assert (second["partition"], second["log_end_offset"]) == (1, 0)
    assert answer.json["config"].keys() == TOPIC_SETTINGS.keys()


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, {"retention.ms": -1, "retention.bytes": -1, "segment.bytes": 1 << 30}),
        (
            {"retention.ms": 5000, "segment.bytes": 2048},
            {"retention.ms": 5000, "retention.bytes": -1, "max.message.bytes": 2048},
        ),
    ],
)
def test_a_description_has_the_settings_as_they_hold(store_path, given, values):
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", config=given)
    command = ("topics", "describe", "orders", "--store", store_path)
    config = call(*command, "--json").json["config"]
    assert {name: config[name] for name in values} == values
    lines = [line.split() for line in call(*command).stdout.splitlines()]
    assert [
        [name, str(value)] for name, value in values.items() if [name, str(value)] not in lines
    ] == []


def test_a_description_has_the_defaults_that_the_store_is_open_with(store_path):
    with eoslog.open(store_path, create=True, config={"log.retention.ms": 7000}) as store:
        store.create_topic("orders")
        store.create_topic("bills", config={"retention.ms": 9000})
        for name, expected in (("orders", 7000), ("bills", 9000)):
            assert topic_config(store, name)["retention.ms"] == expected


def test_a_description_is_whole_where_no_terminal_says_how_wide_it_is(orders):
    text = call("topics", "describe", "orders", "--store", orders).stdout
    assert "last stable" in text
    assert "…" not in text


def test_describe_of_an_unknown_topic_is_a_failure(orders):
    answer = call("topics", "describe", "oders", "--store", orders)
    assert_mistake(answer, FAILED, "oders", "UnknownTopicOrPartitionError")


def test_delete(orders):
    answer = call("topics", "delete", "orders", "--yes", "--store", orders)
    assert (answer.status, answer.stdout) == (DONE, "deleted orders\n")
    with eoslog.open(orders) as store:
        assert store.topics() == {}


def test_delete_asks(orders):
    answer = call("topics", "delete", "orders", "--store", orders, stdin="n\n")
    assert answer.status == FAILED
    with eoslog.open(orders) as store:
        assert "orders" in store.topics()
    answer = call("topics", "delete", "orders", "--store", orders, "--json", stdin="y\n")
    assert (answer.status, answer.json) == (DONE, {"deleted": "orders"})


def test_delete_of_an_unknown_topic_is_a_failure(orders):
    answer = call("topics", "delete", "oders", "--yes", "--store", orders)
    assert_mistake(answer, FAILED, "oders", "UnknownTopicOrPartitionError")


def test_internal_topics_are_listed_when_asked_for(orders):
    with eoslog.open(orders) as store, store.consumer("readers") as consumer:
        consumer.commit({eoslog.TopicPartition("orders", 0): 5})
    for arguments in (("topics", "--internal"), ("topics", "list", "--internal")):
        rows = {row["topic"]: row for row in call(*arguments, "--store", orders, "--json").json}
        assert sorted(rows) == ["__consumer_offsets", "__transaction_state", "orders"]
        assert rows["__consumer_offsets"] == {
            "topic": "__consumer_offsets",
            "partitions": 1,
            "offsets": 1,
        }
    found = call("topics", "describe", "__consumer_offsets", "--store", orders, "--json").json
    assert [row["log_end_offset"] for row in found["partitions"]] == [1]


def test_an_internal_topic_that_is_not_there_yet(store_path):
    eoslog.open(store_path, create=True).close()
    answer = call("topics", "describe", "__consumer_offsets", "--store", store_path)
    assert_mistake(answer, FAILED, "__consumer_offsets", "UnknownTopicOrPartitionError")
    rows = call("topics", "--internal", "--store", store_path, "--json").json
    assert "__consumer_offsets" not in [row["topic"] for row in rows]


def test_internal_before_a_subcommand_is_wrong_use(orders):
    answer = call("topics", "--internal", "describe", "orders", "--store", orders)
    assert_mistake(answer, WRONG_USE, "--internal")


def test_a_topic_that_goes_while_they_are_listed_is_left_out(orders, monkeypatch):
    from eoslog.cli import topics as cli_topics

    row_of = cli_topics.topic_row

    def deleted_meanwhile(store, name):
        return row_of(store, "absent" if name == "short-lived" else name)

    with eoslog.open(orders) as store:
        store.create_topic("short-lived", partitions=1)
    monkeypatch.setattr(cli_topics, "topic_row", deleted_meanwhile)
    answer = call("topics", "--store", orders, "--json")
    assert answer.json == [{"topic": "orders", "partitions": 2, "offsets": 10}]


@pytest.mark.parametrize("arguments", [["a/b"], ["t", "--config", "segment.bytes=many"]])
def test_a_topic_that_is_refused_leaves_no_store(store_path, arguments):
    assert call("topics", "create", *arguments, "--store", store_path).status != DONE
    assert not store_path.exists()


def test_alter_changes_settings_and_adds_partitions(orders):
    answer = call(
        *("topics", "alter", "orders", "--store", orders, "--partitions", 3),
        *("--config", "retention.ms=1000", "--config", "segment.bytes=4096"),
    )
    assert answer.status == DONE
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert lines[0] == ["orders", "has", "3", "partitions"]
    assert ["retention.ms", "-1", "1000"] in lines
    assert ["max.message.bytes", "1048588", "4096"] in lines  # A batch fits into a segment.
    taken_back = call(
        *("topics", "alter", "orders", "--store", orders, "--delete-config", "segment.bytes"),
        "--json",
    )
    assert taken_back.json == {"topic": "orders", "partitions": 3, "config": {"retention.ms": 1000}}
    described = call("topics", "describe", "orders", "--store", orders, "--json").json
    assert described["config"]["retention.ms"] == 1000
    assert len(described["partitions"]) == 3


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ([], WRONG_USE, ("--partitions",)),
        (["--partitions", 1], FAILED, ("cannot become 1",)),
        (["--config", "retention.msx=1"], WRONG_USE, ("retention.msx",)),
        (["--delete-config", "retention.msx"], WRONG_USE, ("retention.msx",)),
    ],
)
def test_a_wrong_alteration_changes_nothing(orders, options, status, words):
    answer = call("topics", "alter", "orders", "--store", orders, *options)
    assert_mistake(answer, status, *words)
    with eoslog.open(orders) as store:
        assert store.topics()["orders"].partitions == 2


def test_settings_from_a_properties_file(orders, tmp_path):
    file = tmp_path / "topic.properties"
    file.write_text("# kept for a day\nretention.ms = 86400000\nsegment.bytes:4096\n")
    answer = call(
        *("topics", "alter", "orders", "--store", orders, "--config-file", file, "--json"),
        *("--config", "segment.bytes=8192"),
    )
    assert answer.json["config"] == {"retention.ms": 86_400_000, "segment.bytes": 8192}
    call("topics", "create", "more", "--store", orders, "--config-file", file)
    with eoslog.open(orders) as store:
        assert store.topics()["more"].config["segment.bytes"] == 4096
    file.write_text("retention.ms = \\u00zz\n")
    answer = call("topics", "alter", "orders", "--store", orders, "--config-file", file)
    assert_mistake(answer, WRONG_USE, "--config-file", "topic.properties")
