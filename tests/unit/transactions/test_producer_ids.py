"""Producer ids are above all that a store's logs hold, wherever the logs came from."""

import json
import shutil

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.transaction_record import encode_transaction_value
from eoslog.errors import StoreError
from eoslog.fs.checkpoint_file import RECOVERY_POINT
from eoslog.storage.log_opener import LogOpener
from eoslog.storage.producer_id_range import FIRST_PRODUCER_ID as FIRST
from eoslog.storage.producer_id_range import STAGED_PRODUCER_ID_MIN, FoundProducerIds
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions.producer_ids import BLOCK_IDS
from eoslog.transactions.state_key import PRODUCER_ID_BLOCK, state_partition_of, transaction_key

LAST_EPOCH = 32766


def anonymous(store):
    producer = store.producer()
    producer.append("t", 0, [b"new"])
    return producer


def named(store):
    producer = store.producer("name-of-it")
    producer.append("t", 0, [b"new"])
    return producer


def transactional(store):
    producer = store.producer(transactional_id="id-of-it")
    producer.init_transactions()
    with producer.transaction():
        producer.append("t", 0, [b"new"])
    return producer


def rotated(store):
    """An id of an older version, whose epochs are used up."""
    write_transaction(store, "old", producer_id=7, producer_epoch=LAST_EPOCH)
    producer = store.producer(transactional_id="old")
    producer.init_transactions()
    with producer.transaction():
        producer.append("t", 0, [b"new"])
    return producer


GIVERS = [anonymous, named, transactional, rotated]


def write_transaction(store, transactional_id, **fields):
    known = {
        "timeout_ms": 60_000,
        "state": "Empty",
        "partitions": None,
        "last_update_ms": 1000,
        "start_ms": -1,
        "client_transaction_version": 2,
    }
    partition = parts_of(store).files.state_log.partition_of(transactional_id)
    value = encode_transaction_value(**(known | fields))
    result = partition.append_columns([value], [transaction_key(transactional_id)])
    parts_of(store).files.state_log.open_partition(state_partition_of(transactional_id)).read_from(
        result.base_offset
    )


def committed(store):
    with store.consumer(isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        return [one.value for one in consumer.poll(timeout=0)]


def next_id(store):
    return parts_of(store).files.producer_ids.take()


def with_topic(store, partitions=1):
    store.create_topic("t", partitions=partitions)
    return store


@pytest.fixture
def elsewhere(tmp_path):
    """Another store, whose producers wrote 300 records under as many ids; closed."""
    path = tmp_path / "elsewhere"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=1, config={"segment.bytes": 1 << 14})
        for number in range(300):
            store.producer().append("t", 0, [b"there-%d" % number])
    return path


def move_in(source, target, topic="t-0"):
    """Put a partition of another store in place of a closed store's, which forgets its own."""
    metadata = (target / topic / "partition.metadata").read_bytes()
    shutil.rmtree(target / topic)
    shutil.copytree(source / topic, target / topic)
    (target / topic / "partition.metadata").write_bytes(metadata)
    for path in (*target.glob("*-checkpoint"), target / ".kafka_cleanshutdown"):
        path.unlink(missing_ok=True)
    for name in ("lmdb", "control"):
        shutil.rmtree(target / "state" / name, ignore_errors=True)


# Where they begin.


@pytest.mark.parametrize("give", GIVERS)
def test_a_new_store_counts_from_2_to_the_40th(store, give):
    assert give(with_topic(store)).producer_id == FIRST == 2**40
    assert committed(store) == [b"new"]


@pytest.mark.parametrize("known", [0, 1000, 3000, FIRST - 1, FIRST, FIRST + 5000])
def test_a_store_of_an_older_version_goes_on_there_too(open_store, known):
    store = with_topic(open_store())
    parts_of(store).files.state_log.append(PRODUCER_ID_BLOCK, "", {"next_producer_id": known})
    engine_of(store).partition("t", 0).append_columns(
        [b"old"], producer_id=max(known - 1, 0), producer_epoch=0, base_sequence=0
    )
    abandon(store)
    store = open_store()
    assert anonymous(store).producer_id == max(FIRST, known)
    assert committed(store) == [b"old", b"new"]
    assert store.verify() == []


def test_the_names_and_ids_of_an_older_version_keep_their_producer_ids(open_store):
    store = with_topic(open_store())
    write_transaction(store, "old", producer_id=7, producer_epoch=3)
    with store.producer(transactional_id="old") as producer:
        producer.init_transactions()
        assert (producer.producer_id, producer.producer_epoch) == (7, 4)


def test_other_programs_can_read_them(store):
    with_topic(store)
    found = json.loads(json.dumps(anonymous(store).producer_id))
    assert found == FIRST < 2**53
    assert [one.producer_id for one in store.partition("t", 0).producers()] == [FIRST]


# What the logs hold.


@pytest.mark.parametrize("give", GIVERS)
@pytest.mark.parametrize("left", ["snapshot", "batches", "some batches"])
def test_they_are_above_those_of_a_partition_that_came_from_elsewhere(
    open_store, store_path, elsewhere, give, left
):
    snapshots = sorted((elsewhere / "t-0").glob("*.snapshot"))
    assert len(snapshots) > 1
    for path in {"snapshot": [], "batches": snapshots, "some batches": snapshots[-1:]}[left]:
        path.unlink()
    with_topic(open_store()).close()
    move_in(elsewhere, store_path)
    store = open_store()
    producer = give(store)
    assert producer.producer_id >= FIRST + 300
    assert committed(store) == [b"there-%d" % number for number in range(300)] + [b"new"]
    producer.close()
    assert store.verify() == []
    store.close()
    store = open_store()
    again = anonymous(store).producer_id
    assert again > producer.producer_id
    assert len(committed(store)) == 302


@pytest.mark.parametrize("read_first", ["verify", "consumer"])
def test_they_are_so_after_a_life_that_only_read(open_store, store_path, elsewhere, read_first):
    with_topic(open_store()).close()
    move_in(elsewhere, store_path)
    store = open_store()
    if read_first == "consumer":
        committed(store)
    else:
        assert store.verify() == []
    store.close()
    assert anonymous(open_store()).producer_id >= FIRST + 300


def test_they_are_so_when_the_partition_is_written_to_last(open_store, store_path, elsewhere):
    with_topic(open_store()).close()
    move_in(elsewhere, store_path)
    store = open_store()
    store.create_topic("other", partitions=1)
    producer = store.producer()
    producer.append("other", 0, [b"first"])
    producer.append("t", 0, [b"new"])
    assert committed(store)[-1] == b"new"


@pytest.mark.parametrize("field", ["producer_id", "next_producer_id"])
def test_they_are_above_those_of_transactional_ids_that_came_from_elsewhere(open_store, field):
    store = with_topic(open_store())
    fields = {"producer_id": 5, "producer_epoch": 1} | {field: FIRST + 77}
    write_transaction(store, "theirs", **fields)
    assert parts_of(store).files.state_log.get(PRODUCER_ID_BLOCK, "") is None
    assert next_id(store) == FIRST + 78


def test_a_record_that_cannot_be_read_keeps_nobody_from_an_id(open_store):
    store = with_topic(open_store())
    partition = parts_of(store).files.state_log.partition_of("theirs")
    result = partition.append_columns([b"\0\x07nonsense, long enough"], [transaction_key("theirs")])
    parts_of(store).files.state_log.open_partition(state_partition_of("theirs")).read_from(
        result.base_offset
    )
    assert next_id(store) == FIRST


def test_they_are_above_what_a_client_wrote_under_an_id_of_its_own(open_store):
    store = with_topic(open_store())
    for producer_id in (FIRST + 5000, STAGED_PRODUCER_ID_MIN, 2**63 - 1):
        engine_of(store).partition("t", 0).append_columns(
            [b"theirs"], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
    store.close()
    assert next_id(open_store()) == FIRST + 5001


def test_they_are_above_what_only_lmdb_remembers(open_store):
    store = with_topic(open_store(eoslog__producers__cached__max=1))
    for producer_id in (FIRST + 5000, 1, 2):
        engine_of(store).partition("t", 0).append_columns(
            [b"theirs"], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        engine_of(store).partition("t", 0).producer_state.persist()
    store.close()
    assert next_id(open_store(eoslog__producers__cached__max=1)) == FIRST + 5001


def test_a_partition_that_is_opened_later_ends_the_block_of_ids(store):
    first = next_id(store)
    found = parts_of(store).files.partitions.found_ids
    found.note(first + 500)
    assert next_id(store) == first + BLOCK_IDS
    found.note(first + 100)  # It is below: the ids go on.
    assert next_id(store) == first + BLOCK_IDS + 1
    found.note(first + 10 * BLOCK_IDS)
    assert next_id(store) == first + 10 * BLOCK_IDS + 1


@pytest.mark.parametrize("producer_id", [-1, 0, FIRST - 1, STAGED_PRODUCER_ID_MIN, 2**63 - 1])
def test_ids_of_brokers_and_of_staged_files_do_not_count(tmp_path, producer_id):
    found = FoundProducerIds(SharedPage(str(tmp_path / "shared"), bytes(16), create=True))
    found.note(producer_id)
    assert found.upper_bound == 0
    found.note(FIRST)
    assert found.upper_bound == FIRST + 1


@pytest.mark.parametrize("below", [1, BLOCK_IDS])
@pytest.mark.parametrize("give", GIVERS)
def test_when_all_are_used_up_that_is_said(open_store, give, below):
    store = with_topic(open_store())
    engine_of(store).partition("t", 0).append_columns(
        [b"theirs"], producer_id=STAGED_PRODUCER_ID_MIN - below, producer_epoch=0, base_sequence=0
    )
    store.close()
    store = open_store()
    for _ in range(2):
        with pytest.raises(StoreError, match="none left"):
            give(store)
    assert committed(store) == [b"theirs"]


# What it costs.


def opened_for_an_id(store, monkeypatch):
    """The partitions that are opened because an id is asked for."""
    opened = []
    plain = LogOpener.open

    def open_log(self, topic, where, *others, **named):
        opened.append(where)
        return plain(self, topic, where, *others, **named)

    with monkeypatch.context() as patch:
        patch.setattr(LogOpener, "open", open_log)
        next_id(store)
    return [where for where in opened if where.topic != "__transaction_state"]


@pytest.mark.parametrize("stop", ["close", "kill", "kill, with rows", "kill, without checkpoints"])
def test_a_store_of_our_own_opens_nothing_for_it(open_store, store_path, monkeypatch, stop):
    store = with_topic(open_store(), partitions=3)
    store.create_topic("unused", partitions=100)
    with store.producer() as producer:
        for number in range(2):
            producer.append("t", number, [b"x"])
    if "rows" in stop:
        for partition in parts_of(store).files.partitions.opened():
            partition.producer_state.persist()
    store.close() if stop == "close" else abandon(store)
    if "checkpoints" in stop:
        (store_path / RECOVERY_POINT).unlink(missing_ok=True)
    store = open_store()
    assert opened_for_an_id(store, monkeypatch) == []
    assert opened_for_an_id(store, monkeypatch) == []


def test_what_came_from_elsewhere_is_opened_once(open_store, store_path, elsewhere, monkeypatch):
    store = with_topic(open_store(), partitions=3)
    for number in range(3):
        store.producer().append("t", number, [b"x"])
    store.close()
    move_in(elsewhere, store_path)
    store = open_store()
    # The store's own are not known any more either.
    assert len(opened_for_an_id(store, monkeypatch)) == 3
    assert opened_for_an_id(store, monkeypatch) == []
    store.close()
    assert opened_for_an_id(open_store(), monkeypatch) == []


def test_one_that_cannot_be_opened_keeps_nobody_from_an_id(
    open_store, store_path, elsewhere, caplog
):
    with_topic(open_store(), partitions=2).close()
    move_in(elsewhere, store_path)
    (store_path / "t-0" / "partition.metadata").write_bytes(
        (elsewhere / "t-0" / "partition.metadata").read_bytes()
    )
    assert next_id(open_store()) >= FIRST
    assert "t-0: its producer ids are not known" in caplog.text


def test_an_old_copy_of_lmdb_with_the_mark_of_its_close_gives_out_no_id_again(tmp_path):
    path, old = tmp_path / "store", tmp_path / "old"
    ids = []

    def live() -> None:
        with eoslog.open(path, create=True) as store:
            if not store.topics():
                store.create_topic("t")
            producer = store.producer()
            producer.append("t", 0, [b"value"])
            ids.append(producer.producer_id)

    live()
    shutil.copytree(path, old)
    live()
    for name in ("state/lmdb/data.mdb", ".kafka_cleanshutdown"):
        shutil.copyfile(old / name, path / name)
    live()
    assert len(set(ids)) == 3
    with eoslog.open(path) as store:
        assert store.partition("t", 0).log_end_offset == 3
