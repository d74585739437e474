"""A worker that does not see the driver's store says so, and stages nothing."""

import shutil

import pytest

import eoslog
from eoslog.spark import StoreNotVisibleError, stage
from eoslog.spark.staging import mark_of_store

OPTIONS = {"topic": "orders", "partitions": 4, "app_id": "job", "run_id": "run"}


def test_a_path_without_a_store_is_named_with_the_host(tmp_path):
    with pytest.raises(StoreNotVisibleError, match=r"host \S+ sees no store at .*gone.*local\["):
        list(stage([b"v"], store=tmp_path / "gone", **OPTIONS))
    assert list(tmp_path.iterdir()) == []


def test_another_store_at_the_same_path_is_noticed(store_path, tmp_path):
    mark = mark_of_store(store_path)
    shutil.rmtree(store_path)
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", partitions=4)
    with pytest.raises(StoreNotVisibleError, match="sees another store"):
        list(stage([b"v"], store=store_path, store_mark=mark, **OPTIONS))
    assert not (store_path / "staging" / "job").exists()


def test_the_mark_is_the_same_by_any_way_to_the_store(store_path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(store_path)
    assert mark_of_store(link) == mark_of_store(store_path)
    (message,) = stage([b"v"], store=link, store_mark=mark_of_store(store_path), **OPTIONS)
    assert message.records == 1


@pytest.mark.spark
def test_a_job_whose_workers_do_not_see_the_store_fails_with_the_reason(
    spark, store_path, tmp_path
):
    path, wrong_path = str(store_path), str(tmp_path / "elsewhere")
    mark = mark_of_store(path)

    def on_another_host(rows):
        return stage(rows, store=wrong_path, store_mark=mark, **OPTIONS)

    rows = spark.sparkContext.parallelize([b"v"], 1)
    with pytest.raises(Exception, match=r"StoreNotVisibleError.*sees no store"):
        rows.mapPartitions(on_another_host).collect()
