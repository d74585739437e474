"""Queries that are started again and again: other partitions, nothing new, a lost checkpoint."""

import shutil

import pytest
from exactly_once import assert_exactly_once, assert_swept
from read_back import numbers_in
from short_form import short_form
from spark_jobs import add_file, start, start_files

import eoslog
from eoslog.spark.failure_reason import reason_of

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILE_ROWS = 100


class Files:
    """A query that lands a folder's files, one a micro-batch, and stops when it has."""

    def __init__(self, spark, path, store_path, gates):
        self._spark = spark
        self.folder = path / "in"
        self.folder.mkdir()
        self._gates = gates
        self.checkpoint = path / "checkpoint"
        self.store = store_path
        self.count = 0

    def add(self, count=1):
        for _ in range(count):
            first = self.count * FILE_ROWS
            add_file(self.folder, f"{self.count}.txt", range(first, first + FILE_ROWS))
            self.count += 1

    @property
    def rows(self):
        return range(self.count * FILE_ROWS)

    def run(self, **options):
        arguments = {"checkpoint": self.checkpoint, "gates": self._gates.folder, **options}
        query = start_files(self._spark, self.folder, self.store, **arguments)
        query.awaitTermination()
        return query


@pytest.fixture
def files(steered_spark, tmp_path, store_path, gates):
    return Files(steered_spark, tmp_path, store_path, gates)


def version_of(store_path, app_id):
    with eoslog.open(store_path) as store:
        return store.application(app_id).version


# Restarts of a checkpoint.


@pytest.mark.long
def test_each_start_brings_in_what_is_new_whatever_its_number_of_tasks(files):
    ids = set()
    for tasks, added in ((1, 2), (4, 1), (2, 0), (3, 1), (3, 0)):
        files.add(added)
        ids.add(files.run(tasks=tasks).id)
        assert_exactly_once(files.store, files.rows)
    assert len(ids) == 1
    assert version_of(files.store, f"spark-{ids.pop()}") == files.count - 1
    assert_swept(files.store)


@pytest.mark.long
def test_a_batch_without_rows_is_a_version_too(files, gates):
    """Tasks without rows, a batch without rows, and the replay of one."""
    files.add(3)
    some = f"CAST(value AS INT) NOT BETWEEN {FILE_ROWS} AND {2 * FILE_ROWS - 1}"
    gates.set("committed of batch 1", "raise")
    with pytest.raises(Exception, match="on purpose"):
        files.run(where=some)
    query = files.run(where=some, tasks=2)
    landed = [row for row in files.rows if row // FILE_ROWS != 1]
    assert_exactly_once(files.store, landed)
    assert version_of(files.store, f"spark-{query.id}") == 2
    files.run(where="value = 'none'")
    files.add()
    files.run(where="value = 'none'")
    assert_exactly_once(files.store, landed)
    assert version_of(files.store, f"spark-{query.id}") == 3


# A checkpoint that was deleted.


@pytest.mark.long
@pytest.mark.parametrize("options", short_form([{}, {"txnAppId": "job"}], {}))
def test_a_query_whose_checkpoint_was_deleted_is_refused(files, options):
    """Else it would land all again, or, with an application id, skip what is new."""
    files.add(2)
    files.run(**options)
    shutil.rmtree(files.checkpoint)
    files.add()
    with pytest.raises(Exception, match="StagedSourceError") as caught:
        files.run(**options)
    assert "allowBatchIdReset" in reason_of(caught.value)
    assert numbers_in(files.store) == list(files.rows[: 2 * FILE_ROWS])
    # The refused query has a checkpoint now; starting it again changes nothing of the verdict.
    with pytest.raises(Exception, match="StagedSourceError"):
        files.run(**options)
    assert_exactly_once(files.store, files.rows[: 2 * FILE_ROWS])
    files.run(**options, allowBatchIdReset=True)
    everything = [*files.rows, *files.rows[: 2 * FILE_ROWS]]
    assert_exactly_once(files.store, everything)
    # Now the new checkpoint is the one that counts.
    files.add()
    files.run(**options)
    assert_exactly_once(files.store, [*everything, *files.rows[3 * FILE_ROWS :]])
    assert_swept(files.store)


@pytest.mark.long
def test_a_checkpoint_that_comes_back_after_a_reset_is_refused(files, tmp_path):
    """Two checkpoints of one name can't take turns: batches of one would be skipped."""
    files.add()
    files.run(txnAppId="job")
    files.checkpoint.rename(tmp_path / "old")
    files.run(txnAppId="job", allowBatchIdReset=True)
    shutil.rmtree(files.checkpoint)
    (tmp_path / "old").rename(files.checkpoint)
    files.add()
    with pytest.raises(Exception, match="StagedSourceError"):
        files.run(txnAppId="job")
    assert_exactly_once(files.store, [*range(FILE_ROWS), *range(FILE_ROWS)])


# From a topic into a topic.


@pytest.fixture
def copy(steered_spark, tmp_path, store_path, gates):
    """Run a query that copies the topic `input` to `orders`, as far as `input` goes."""
    with eoslog.open(store_path) as store:
        store.create_topic("input", partitions=2)

    def copy(tasks=None, available_now=True, **options):
        reader = steered_spark.readStream.format("eoslog").option("store", str(store_path))
        reader = reader.option("subscribe", "input").option("startingOffsets", "earliest")
        frame = reader.options(maxOffsetsPerTrigger=150, **options).load().select("key", "value")
        if tasks is not None:
            frame = frame.repartition(tasks)
        query = start(frame, store_path, tmp_path / "checkpoint", gates.folder, available_now)
        if available_now:
            query.awaitTermination()
        return query

    return copy


def produce(store_path, rows, aborted=()):
    """Append rows to the input in transactions of 40, and some in ones that are aborted."""
    with eoslog.open(store_path) as store:
        producer = store.producer(transactional_id="input")
        producer.init_transactions()
        for first in range(rows.start, rows.stop, 40):
            part = rows[first - rows.start :][:40]
            producer.begin_transaction()
            for partition in (0, 1):
                values = [b"%d" % row for row in part if row % 2 == partition]
                producer.append("input", partition, values)
            producer.commit_transaction()
        for row in aborted:
            producer.begin_transaction()
            producer.append("input", row % 2, [b"%d" % row])
            producer.abort_transaction()


@pytest.mark.long
def test_a_copy_of_a_topic_goes_on_after_each_failure(copy, store_path, gates):
    """Offsets with markers and aborted records between are no holes that a batch falls into."""
    produce(store_path, range(400), aborted=range(1000, 1005))
    gates.set("committed of batch 1", "raise")
    with pytest.raises(Exception, match="on purpose"):
        copy()
    gates.set("commit of batch 2", "kill")
    with pytest.raises(Exception, match=r"exited unexpectedly|crashed"):
        copy(minPartitions=5)
    produce(store_path, range(400, 600), aborted=range(1005, 1010))
    copy(tasks=3)
    assert_exactly_once(store_path, range(600))
    copy()
    assert_exactly_once(store_path, range(600))
    assert_swept(store_path)


@pytest.mark.soak
def test_a_copy_stopped_in_mid_batch_goes_on(copy, store_path, gates):
    produce(store_path, range(400))
    gates.set("write 1 of batch 1", "hold")
    query = copy(tasks=2, available_now=False)
    gates.wait_for("write 1 of batch 1")
    query.stop()
    gates.open("write 1 of batch 1")
    produce(store_path, range(400, 500))
    copy(minPartitions=4)
    assert_exactly_once(store_path, range(500))


# foreachBatch, by the recipe.


@pytest.mark.long
def test_foreach_batch_by_the_recipe_lands_each_batch_once(files, steered_spark, gates):
    """The function fails after its first write, and between its two writes."""
    with eoslog.open(files.store) as store:
        store.create_topic("copies", partitions=2)
    files.add(3)

    def land(frame, batch_id):
        for topic in ("orders", "copies"):
            writer = frame.write.format("eoslog").mode("append")
            writer = writer.option("store", str(files.store)).option("topic", topic)
            writer.option("txnAppId", f"to-{topic}").option("txnVersion", batch_id).save()
            gates.come_to(f"{topic} of batch {batch_id}")

    lines = steered_spark.readStream.option("maxFilesPerTrigger", 1).text(str(files.folder))

    def run():
        writer = lines.writeStream.foreachBatch(land).trigger(availableNow=True)
        writer.option("checkpointLocation", str(files.checkpoint)).start().awaitTermination()

    for step in ("orders of batch 1", "copies of batch 1"):
        gates.set(step, "raise")
        with pytest.raises(Exception, match="on purpose"):
            run()
    run()
    for topic in ("orders", "copies"):
        assert_exactly_once(files.store, files.rows, topic)
    assert_swept(files.store)
