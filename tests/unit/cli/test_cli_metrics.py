"""`eoslog metrics`: the figures of a store over all its processes, living and dead."""

import re
import subprocess
import sys

import pytest
from cli_calls import FAILED, WRONG_USE, assert_mistake, call
from harness.crew import Member

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ProducerFencedError

parser = pytest.importorskip("prometheus_client.parser")


@pytest.fixture
def store_path(tmp_path):
    return tmp_path / "store"


def samples(store_path):
    """Each sample of the text format by its name and labels, as another process prints it."""
    words = (sys.executable, "-m", "eoslog", "metrics", "--prometheus", "--store", str(store_path))
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_fence_and_a_duplicate_of_a_killed_process(store_path):
    with eoslog.open(store_path, create=True) as store, Member() as other:
        store.create_topic("t")
        zombie = store.producer(transactional_id="job")
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send("t", b"x")
        zombie.flush()
        other.run("import eoslog; store = eoslog.open(path)", path=str(store_path))
        other.run("p = store.producer(transactional_id='job'); p.init_transactions()")
        other.run("q = store.producer(); q.append('t', 0, values=[b'once'] * 3)")
        other.run("log = store.partition('t', 0); end = log.log_end_offset")
        other.run("raw = bytes(log.read(end - 3, 1 << 20)); log.append_batch(bytes(8) + raw[8:])")
        other.kill()
        found = samples(store_path)
        with pytest.raises(ProducerFencedError):
            zombie.commit_transaction()
    assert found["eoslog_producers_fenced_total",] == 1
    assert found["eoslog_transactions_aborted_by_store_total", "new_producer"] == 1
    assert found["eoslog_duplicate_batches_total",] == 1
    assert found["eoslog_duplicate_records_total",] == 3
    later = samples(store_path)
    for name in ("eoslog_producers_fenced_total", "eoslog_duplicate_records_total"):
        assert later[name,] == found[name,]
    assert later["eoslog_processes",] == 0  # Who only reads does not have it open.


def test_offsets_and_lag_have_kafka_exporters_names(store_path):
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("t", partitions=2)
        for number in range(2):
            store.producer().append("t", number, [b"x"] * 10)
        store.delete_records({TopicPartition("t", 1): 4})
        store.consumer(group="g").commit({TopicPartition("t", 0): 4, TopicPartition("t", 1): 10})
    found = samples(store_path)
    assert found["kafka_topic_partitions", "t"] == 2
    for number, oldest in ((0, 0), (1, 4)):
        assert found["kafka_topic_partition_current_offset", str(number), "t"] == 10
        assert found["kafka_topic_partition_oldest_offset", str(number), "t"] == oldest
    assert found["kafka_consumergroup_current_offset", "g", "0", "t"] == 4
    assert found["kafka_consumergroup_lag", "g", "0", "t"] == 6
    assert found["kafka_consumergroup_lag", "g", "1", "t"] == 0
    assert found["kafka_consumergroup_lag_sum", "g", "t"] == 6
    assert found["kafka_consumergroup_current_offset_sum", "g", "t"] == 14
    assert found["kafka_consumergroup_members", "g"] == 0


def test_json_and_the_table_have_the_same_samples(store_path):
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("t")
        store.producer().append("t", 0, [b"x"] * 10)
    answer = call("metrics", "--json", "--store", store_path)
    as_json = {(one["name"], *sorted(one["labels"].items())): one["value"] for one in answer.json}
    current = ("kafka_topic_partition_current_offset", ("partition", "0"), ("topic", "t"))
    assert as_json[current] == 10
    lines = call("metrics", "--store", store_path).stdout.splitlines()
    assert any(re.search(r"current_offset +topic=t, partition=0 +10", line) for line in lines)
    assert not any("duplicate" in line for line in lines)
    names = {re.sub("_(bucket|sum|count)$", "", name) for name, *_ in as_json}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name, *_ in samples(store_path)} == names


def test_a_wrong_call(store_path):
    assert_mistake(
        call("metrics", "--prometheus", "--json", "--store", store_path), WRONG_USE, "exclude"
    )
    assert_mistake(call("metrics", "--store", store_path), FAILED, "NotAStoreError")
    assert_mistake(call("metrics", "--promethius", "--store", store_path), WRONG_USE, "promethius")


def test_without_the_library_the_error_says_what_to_install(store_path, monkeypatch):
    eoslog.open(store_path, create=True).close()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = call("metrics", "--prometheus", "--store", store_path)
    assert_mistake(answer, FAILED, "pip install 'eoslog[metrics]'", "MissingDependencyError")
    assert call("metrics", "--store", store_path).status == 0
