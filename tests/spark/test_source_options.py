"""Options of the data source, without Spark: which store, which names, which values."""

import logging
from pathlib import Path

import pytest

from eoslog.spark import source_options
from eoslog.spark.source_options import check_options, find, flag, store_path, text, whole

KNOWN = frozenset(("topic", "txnAppId", "kafka.isolation.level"))


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch):
    monkeypatch.setattr(source_options, "_ignored", set())


@pytest.mark.parametrize(
    "options",
    [
        {"store": "/data/store"},
        {"path": "/data/store"},
        {"PATH": "/data/store"},
        {"path": "file:///data/store"},
        {"path": "file:/data/store"},
        {"path": "file://localhost/data/store"},
        {"kafka.bootstrap.servers": "eoslog:/data/store"},
        {"kafka.bootstrap.servers": "eoslog:///data/store"},
        {"store": "/data/store", "path": "file:/data/store"},
        {"store": "/data/store", "kafka.bootstrap.servers": "broker:9092"},
        {"store": "/data/store", "kafka.bootstrap.servers": "eoslog:/data/store"},
    ],
)
def test_the_store_is_named_by_any_of_three_options(options):
    assert store_path(options) == Path("/data/store")


def test_options_may_name_one_store_by_several_paths(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    options = {"store": f"{tmp_path}/link", "path": f"{tmp_path}/link/../store/"}
    assert store_path(options) == tmp_path / "link"


def test_a_relative_path_is_made_absolute():
    assert store_path({"store": "data"}) == Path.cwd() / "data"
    assert store_path({"kafka.bootstrap.servers": "eoslog:data"}) == Path.cwd() / "data"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, 'no store.*option\\("store"'),
        ({"kafka.bootstrap.servers": "broker:9092"}, "no store"),
        ({"store": ""}, "store must be"),
        ({"kafka.bootstrap.servers": "eoslog:"}, "kafka.bootstrap.servers must be"),
        ({"store": "/a", "path": "/b"}, "store=/a, path=/b"),
        ({"path": "file://elsewhere/a"}, "path of this host"),
    ],
)
def test_without_one_store_nothing_goes(options, reason):
    with pytest.raises(ValueError, match=reason):
        store_path(options)


def test_known_options_pass_whatever_their_case():
    options = {"TOPIC": "t", "txnappid": "a", "store": "/s", "path": "/s", "queryname": "q"}
    check_options({**options, "checkpointLocation": "/c", "kafka.isolation.level": "x"}, KNOWN, "w")


@pytest.mark.parametrize(
    ("name", "hint"), [("topik", "did you mean topic?"), ("txnapid", "txnAppId"), ("zzz", "store")]
)
def test_an_unknown_option_is_refused_with_the_nearest_one(name, hint):
    with pytest.raises(
        ValueError, match=f"option {name} is unknown to eoslog's batch write: "
    ) as e:
        check_options({name: "1"}, KNOWN, "batch write")
    assert hint in str(e.value)


def test_options_of_kafka_clients_are_warned_of_once(caplog):
    options = {"kafka.acks": "all", "kafka.bootstrap.servers": "broker:9092"}
    with caplog.at_level(logging.WARNING):
        check_options(options, KNOWN, "batch write")
        check_options(options, KNOWN, "batch write")
    assert sorted(record.args[0] for record in caplog.records) == sorted(options)


def test_a_store_in_place_of_brokers_is_no_reason_to_warn(caplog):
    check_options({"kafka.bootstrap.servers": "eoslog:/s"}, KNOWN, "batch write")
    assert caplog.records == []


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("FALSE", False), (" 1 ", True)])
def test_flags(value, expected):
    assert flag({"includeheaders": value}, "includeHeaders", not expected) is expected


def test_defaults():
    assert flag({}, "includeHeaders", True) is True
    assert whole({}, "minPartitions", 7, 1) == 7
    assert text({}, "topic") is None
    assert find({"Topic": "t"}, "topic") == "t"


@pytest.mark.parametrize("value", ["", "maybe", "2"])
def test_a_flag_that_is_none(value):
    with pytest.raises(ValueError, match=f"includeHeaders must be true or false, got {value!r}"):
        flag({"includeHeaders": value}, "includeHeaders", True)


def test_numbers():
    assert whole({"minpartitions": "12"}, "minPartitions", 0, 1) == 12
    with pytest.raises(ValueError, match=r"minPartitions must be an integer, got '1\.5'"):
        whole({"minPartitions": "1.5"}, "minPartitions", 0, 1)
    with pytest.raises(ValueError, match="minPartitions must be at least 1, got 0"):
        whole({"minPartitions": "0"}, "minPartitions", 0, 1)
    assert whole({"minPartitions": "9223372036854775807"}, "minPartitions", 0, 1) == 2**63 - 1


@pytest.mark.parametrize("value", ["", " 1", "1_0", "1_000", "\u0661", "0x10", "1e3", "9" * 5000])
def test_what_is_no_whole_number(value):
    with pytest.raises(ValueError, match="txnVersion must be an integer"):
        whole({"txnVersion": value}, "txnVersion", 0, 0)


@pytest.mark.parametrize("value", ["9223372036854775808", "9" * 3000])
def test_a_number_that_is_too_large(value):
    with pytest.raises(ValueError, match=r"txnVersion must be below 2\*\*63"):
        whole({"txnVersion": value}, "txnVersion", 0, 0)


def test_an_empty_text_is_a_mistake():
    with pytest.raises(ValueError, match="topic is empty"):
        text({"topic": " "}, "topic")


@pytest.mark.parametrize("table", [{"provider": "eoslog"}, {"PROVIDER": "eoslog", "owner": "me"}])
def test_create_table_is_refused_with_the_way_that_works(table):
    """Spark gives a table's properties to the schema alone, and no option to its reads."""
    data_source = pytest.importorskip("pyspark.sql.datasource")
    from eoslog.spark.data_source import EoslogDataSource

    given = {"store": "/data/s", "subscribe": "a", "option.store": "/data/s", **table}
    with pytest.raises(ValueError, match="CREATE TEMPORARY VIEW name USING eoslog OPTIONS"):
        EoslogDataSource(data_source.CaseInsensitiveDict(given)).schema()
    with pytest.raises(ValueError, match=r"no store: .* CREATE TEMPORARY VIEW name USING eoslog"):
        store_path({})
