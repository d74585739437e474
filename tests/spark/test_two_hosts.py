"""A standalone cluster of two hosts: both stage on a shared path, the driver's host decides."""

from types import SimpleNamespace

import pytest
from cluster import Cluster, why_not_apart
from exactly_once import assert_exactly_once, wait_until_swept
from quick_java import QUICK_JAVA
from read_back import records_in, values_in
from remote_driver import RemoteDriver
from spark_jobs import add_file

import eoslog

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]

HERE, THERE = "127.0.0.2", "127.0.0.3"
# The name of the other host, where it can have one of its own.
OTHER_HOST = "eoslog-other-host"
ROWS = 600
CONFIG = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.sql.shuffle.partitions": 2,
    # A task that takes a while gets a second attempt, which Spark makes on another host only.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "300ms",
}


@pytest.fixture(scope="module")
def hosts(spark, tmp_path_factory):
    """The cluster, a driver of it, and a folder that the other host does not see."""
    root = tmp_path_factory.mktemp("hosts")
    hidden = root / "of the driver's host"
    hidden.mkdir()
    apart = why_not_apart() is None
    cluster = Cluster(root)
    driver = None
    try:
        cluster.add_worker("host", HERE, cores=2)
        cluster.add_worker(OTHER_HOST, THERE, cores=2, apart=apart, hidden=[hidden])
        driver = RemoteDriver(root / "driver.log", cluster.master, CONFIG)
        cluster.wait_until_up()
        driver.wait_until_up()
        yield SimpleNamespace(cluster=cluster, driver=driver, hidden=hidden)
    finally:
        if driver is not None:
            driver.close()
        cluster.close()


@pytest.fixture
def apart():
    if reason := why_not_apart():
        pytest.skip(f"no host of its own for a worker: {reason}")


def hosts_in(store_path):
    return {record.key.decode() for record in records_in(store_path)}


def test_tasks_of_both_hosts_stage_and_the_driver_decides(hosts, store_path, gates):
    """One task is for each host: whichever is slow, the other one does not do all of them."""
    hosts.driver.run(
        "write_hosts",
        store=store_path,
        gates=gates.folder,
        rows=ROWS,
        tasks=8,
        only_at={0: HERE, 1: THERE},
    )
    assert_exactly_once(store_path, range(ROWS))
    assert hosts_in(store_path) == {HERE, THERE}
    wait_until_swept(store_path)


def test_two_attempts_at_a_task_at_once_land_it_once(hosts, store_path, gates):
    """Spark's speculation: both stage all rows before either has told Spark."""
    first, second = "staged 0.0", "staged 0.1"
    gates.set(first, "hold")
    gates.set(second, "hold")
    job = hosts.driver.begin(
        "write_hosts", store=store_path, gates=gates.folder, rows=ROWS, tasks=3
    )
    gates.wait_for(first)
    gates.wait_for(second)
    gates.open(first)
    gates.open(second)
    hosts.driver.end(job)
    assert_exactly_once(store_path, range(ROWS))
    wait_until_swept(store_path)


@pytest.mark.soak
def test_an_attempt_that_lost_writes_on_after_the_commit_and_changes_nothing(
    hosts, store_path, gates
):
    gates.set("write 0.0", "hold")
    hosts.driver.run("write_hosts", store=store_path, gates=gates.folder, rows=ROWS, tasks=2)
    assert gates.reached("write 0.0") == 1
    gates.open("write 0.0")
    assert_exactly_once(store_path, range(ROWS))
    hosts.driver.run("write_hosts", store=store_path, gates=gates.folder, rows=ROWS, tasks=2)
    assert_exactly_once(store_path, [*range(ROWS), *range(ROWS)])
    wait_until_swept(store_path)


def test_a_host_that_does_not_see_the_store_says_so(hosts, apart, gates):
    """The tasks of the driver's host are kept busy, so that the other host gets every attempt."""
    store_path = hosts.hidden / "store"
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", partitions=4)
    for number in range(4):
        gates.set(f"write {number}", "hold")
    with pytest.raises(RuntimeError, match="StoreNotVisibleError") as caught:
        hosts.driver.run("write_hosts", store=store_path, gates=gates.folder, rows=ROWS, tasks=4)
    for words in (f"host {OTHER_HOST} sees no store at {store_path}", "shared path"):
        assert words in str(caught.value)
    assert values_in(store_path) == []
    for number in range(4):
        gates.open(f"write {number}")


@pytest.mark.soak
def test_a_query_goes_on_when_a_host_is_lost_in_mid_batch(hosts, tmp_path, store_path, gates):
    """The last test: from here on there is one host."""
    for number in range(3):
        add_file(tmp_path / "in", f"{number}.txt", range(number * ROWS, (number + 1) * ROWS))
    for number in range(4):
        gates.set(f"write {number} of batch 1", "hold")
    query = hosts.driver.begin(
        "stream_files",
        folder=tmp_path / "in",
        store=store_path,
        checkpoint=tmp_path / "checkpoint",
        gates=gates.folder,
        tasks=4,
    )
    for number in range(4):
        gates.wait_for(f"write {number} of batch 1")
    hosts.cluster.lose(OTHER_HOST)
    for number in range(4):
        gates.open(f"write {number} of batch 1")
    hosts.driver.end(query)
    assert_exactly_once(store_path, range(3 * ROWS))
    wait_until_swept(store_path)
