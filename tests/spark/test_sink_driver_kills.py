"""A driver is killed, Java and all, while its jobs and queries stand at each step of theirs.

One driver runs all of them at once, each against a store of its own, and dies once for all. Then
they are run again in the tests' own session, with other numbers of tasks. Before that, what two
drivers do beside each other is tested with the same one.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from exactly_once import (
    LONGEST_WAIT_S,
    assert_exactly_once,
    assert_swept,
    is_alive,
    wait_for_the_end_of,
    wait_until_swept,
)
from gates import Gates
from read_back import numbers_in, staged_files
from remote_driver import RemoteDriver
from spark_jobs import add_file, start_files, write_numbers

import eoslog

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.long]

# All of them need a place for their tasks at the same time.
MASTER = "local[16,3]"
ROWS = 300
STEPS = ("write 1", "staged 1", "commit", "decided", "committed")
# Of a query that has landed one micro-batch before.
BATCH = 1


@dataclass(frozen=True)
class Held:
    """A job or a query that was held at a step when its driver died."""

    folder: Path
    step: str

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def gates(self) -> Gates:
        return Gates(str(self.folder / "gates"))

    def hold(self, action="hold"):
        with eoslog.open(self.store, create=True) as store:
            store.create_topic("orders", partitions=4)
        self.gates.set(self.step, action)

    @property
    def query(self):
        return {
            "folder": self.folder / "in",
            "store": self.store,
            "checkpoint": self.folder / "checkpoint",
            "gates": self.gates.folder,
        }


@pytest.fixture(scope="module")
def driver(spark, tmp_path_factory):
    """A driver beside the tests' own, up; `held` kills it."""
    driver = RemoteDriver(tmp_path_factory.mktemp("driver") / "driver.log", MASTER)
    try:
        driver.wait_until_up()
        yield driver
    finally:
        driver.close()


@pytest.mark.soak
def test_two_drivers_on_one_checkpoint(steered_spark, driver, tmp_path, store_path, gates):
    """The older one, held in its commit meanwhile, is out once the newer one has decided."""
    for number in range(2):
        add_file(tmp_path / "in", f"{number}.txt", range(number * ROWS, (number + 1) * ROWS))
    query = {
        "folder": tmp_path / "in",
        "store": store_path,
        "checkpoint": tmp_path / "checkpoint",
    }
    gates.set(f"commit of batch {BATCH}", "hold")
    run = driver.begin("stream_files", **query, gates=gates.folder, available_now=False)
    gates.wait_for(f"commit of batch {BATCH}")
    newer = start_files(
        steered_spark,
        **query,
        gates=str(tmp_path / "no gates"),
        tasks=2,
        available_now=False,
    )
    try:
        newer.processAllAvailable()
        assert_exactly_once(store_path, range(2 * ROWS))
        gates.open(f"commit of batch {BATCH}")
        with pytest.raises(RuntimeError, match="StagedRunFencedError"):
            driver.end(run)
        add_file(tmp_path / "in", "2.txt", range(2 * ROWS, 3 * ROWS))
        newer.processAllAvailable()
    finally:
        newer.stop()
    assert_exactly_once(store_path, range(3 * ROWS))
    assert_swept(store_path)


@pytest.mark.soak
def test_two_drivers_that_race_on_one_checkpoint(
    steered_spark, driver, tmp_path, store_path, gates
):
    """Spark stops one of them, or the store does; a third one brings the rest in."""
    files = 8
    for number in range(files):
        add_file(tmp_path / "in", f"{number}.txt", range(number * 50, (number + 1) * 50))
    query = {
        "folder": tmp_path / "in",
        "store": store_path,
        "checkpoint": tmp_path / "checkpoint",
        "gates": gates.folder,
    }
    # Both stand in a commit, if both get there.
    gates.set("commit", "hold")
    run = driver.begin("stream_files", **query)
    gates.wait_for("commit")
    own = start_files(steered_spark, **query, tasks=2)
    until_s = time.monotonic() + LONGEST_WAIT_S
    while own.isActive and gates.reached("commit") < 2 and time.monotonic() < until_s:
        time.sleep(0.02)
    gates.open("commit")
    ended = []
    for end in (own.awaitTermination, lambda: driver.end(run)):
        try:
            end()
        except Exception as error:
            ended.append(str(error))
    assert len(ended) < 2 or "Fenced" in "".join(ended) or "oncurrent" in "".join(ended), ended
    start_files(steered_spark, **query, tasks=3).awaitTermination()
    assert_exactly_once(store_path, range(files * 50))
    wait_until_swept(store_path)


@pytest.fixture(scope="module")
def held(driver, tmp_path_factory, request):
    """All of them, after the death of their driver."""
    root = tmp_path_factory.mktemp("killed")
    found = {}
    here = [item for item in request.session.items if item.path == request.path]
    users = [item for item in here if "held" in item.fixturenames]
    for kind, step in [item.callspec.params["name"] for item in users]:
        gate = step if kind == "job" else f"{step} of batch {BATCH}"
        found[kind, step] = one = Held(root / f"{kind} {step}", gate)
        one.folder.mkdir()
        one.hold("survive" if kind == "late" else "hold")
    for (kind, _), one in found.items():
        begin(driver, kind, one)
    for one in found.values():
        one.gates.wait_for(one.step)
    driver.kill()
    for (kind, _), one in found.items():
        if kind != "late":
            # Its daemon tells it, in its own time: it is not to go on with what comes next.
            process = one.gates.process_at(one.step)
            wait_for_the_end_of(process, LONGEST_WAIT_S)
            assert not is_alive(process), f"{kind} outlived its driver at {one.step!r}"
    yield found
    for one in found.values():
        one.gates.open(one.step)


def begin(driver, kind, one):
    if kind == "job":
        driver.begin(
            "write_numbers",
            store=one.store,
            gates=one.gates.folder,
            first=0,
            upper_bound=ROWS,
            txnAppId="job",
            txnVersion=0,
        )
        return
    for number in range(3):
        add_file(one.folder / "in", f"{number}.txt", range(number * ROWS, (number + 1) * ROWS))
    driver.begin("stream_files", **one.query)


def held_at(kind, *short):
    """A parameter for each step; at those that are not in the short form a soak dies."""
    return [
        pytest.param((kind, step), id=step, marks=[] if step in short else [pytest.mark.soak])
        for step in STEPS
    ]


def landed_before(kind, step):
    """How many rows are in the log once the driver is dead."""
    return (ROWS if kind == "query" else 0) + (ROWS if step in ("decided", "committed") else 0)


def assert_landed(store_path, count):
    """So many rows are in, once the Python process that decided has noticed its driver's death."""
    until_s = time.monotonic() + LONGEST_WAIT_S
    while (found := numbers_in(store_path)) != list(range(count)) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert found == list(range(count))


@pytest.mark.soak
@pytest.mark.parametrize("name", held_at("job", "decided"))
def test_a_job_whose_driver_was_killed_is_run_again(steered_spark, held, name):
    one, step = held[name], name[1]
    assert_landed(one.store, landed_before(*name))
    if step in ("staged 1", "commit"):
        assert staged_files(one.store)
    one.gates.open(step)
    for _ in range(2):
        write_numbers(
            steered_spark,
            one.store,
            one.gates.folder,
            0,
            ROWS,
            tasks=2,
            txnAppId="job",
            txnVersion=0,
        )
        assert_exactly_once(one.store, range(ROWS))
    # What the dead driver's tasks left is known by its age only.
    wait_until_swept(one.store, {"eoslog.staging.retention.ms": 1})


@pytest.mark.parametrize("name", held_at("query", "write 1"))
def test_a_query_whose_driver_was_killed_goes_on(steered_spark, held, name):
    one = held[name]
    assert_landed(one.store, landed_before(*name))
    one.gates.open(one.step)
    start_files(steered_spark, tasks=2, **one.query).awaitTermination()
    assert_exactly_once(one.store, range(3 * ROWS))
    wait_until_swept(one.store)


@pytest.mark.parametrize("name", [("late", "commit")], ids=["commit"])
def test_a_commit_that_outlives_its_driver_changes_nothing(steered_spark, held, name):
    """It comes to its decision when the next driver has decided that batch, and one more."""
    one = held[name]
    late = one.gates.process_at(one.step)
    # The gate is the next driver's too: so it has gates of its own.
    query = {**one.query, "gates": str(one.folder / "no gates")}
    start_files(steered_spark, tasks=2, **query).awaitTermination()
    assert_exactly_once(one.store, range(3 * ROWS))
    assert is_alive(late), "it died with its driver"
    through = f"committed of batch {BATCH}"
    one.gates.set(through, "slow")
    one.gates.open(one.step)
    wait_for_the_end_of(late, LONGEST_WAIT_S)
    assert not is_alive(late)
    assert not one.gates.reached(through), "it was not refused"
    assert_exactly_once(one.store, range(3 * ROWS))
    assert_swept(one.store)
