"""`eoslog export-kafka`: what it prints, and its mistakes."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog.store.store import abandon


@pytest.fixture
def store_path(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("t", partitions=2, config={"segment.bytes": 4096})
        with store.producer(name="named") as producer:
            producer.append("t", 0, [b"x"])
    return tmp_path / "store"


def test_the_result_is_told(store_path, tmp_path):
    answer = call("--store", store_path, "export-kafka", tmp_path / "logs", "--node-id", 3)
    assert answer.status == DONE
    lines = answer.stdout.splitlines()
    assert lines[0] == (
        f"{tmp_path / 'logs'}: 1 topic, 2 partitions, 0.0 MB, 0 groups, 0 transactional ids"
    )
    assert any(line.startswith("note: topic t: segment.bytes=4096 becomes") for line in lines)
    assert "note: Kafka has no positions of named producers: named" in lines
    assert "node.id=3" in lines
    assert (tmp_path / "logs" / "t-0").is_dir()


def test_the_result_as_json(store_path, tmp_path):
    answer = call("export-kafka", tmp_path / "logs", "--store", store_path, "--json", "--link")
    assert answer.status == DONE
    found = answer.json
    assert (found["path"], found["partitions"], found["kept"]) == (str(tmp_path / "logs"), 2, [])
    assert found["server_properties"].startswith("process.roles=")


def test_open_transactions_are_named(store_path, tmp_path):
    store = eoslog.open(store_path)
    producer = store.producer(transactional_id="left")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"open", partition=1)
    producer.flush()
    abandon(store)
    answer = call("--store", store_path, "export-kafka", tmp_path / "logs")
    assert_mistake(answer, FAILED, "'left' (open): t-1 from offset 0", "ExportRefusedError")
    answer = call(
        *("--store", store_path, "export-kafka", tmp_path / "logs"),
        *("--open-transactions", "keep", "--json"),
    )
    [kept] = answer.json["kept"]
    assert kept["first_offsets"] == {"t-1": 0}
    answer = call(
        *("--store", store_path, "export-kafka", tmp_path / "again"),
        *("--open-transactions", "abort"),
    )
    assert "aborted: transaction 'left' (open): t-1 from offset 0" in answer.stdout


def test_mistakes(store_path, tmp_path):
    def mistake(status, *words, arguments=(), store=store_path, to=tmp_path / "logs"):
        answer = call("--store", store, "export-kafka", to, *arguments)
        assert_mistake(answer, status, *words)

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    mistake(FAILED, "not empty", to=tmp_path / "full")
    mistake(FAILED, "is not a store", store=tmp_path / "full")
    mistake(WRONG_USE, "must not contain", to=store_path / "logs")
    mistake(WRONG_USE, "commit", arguments=("--open-transactions", "commit"))
    mistake(WRONG_USE, "-1", arguments=("--node-id", "-1"))
    assert_mistake(call("export-kafka", tmp_path / "logs"), WRONG_USE, "no store")
    assert_mistake(call("--store", store_path, "export-kafka"), WRONG_USE, "DESTINATION")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["full", "store"]
