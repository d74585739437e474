"""`eoslog consume` beside transactions, and for a group: what it prints, and where it goes on."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import TopicPartition
from eoslog.cli.records.topic_reader import FETCH_RECORDS
from eoslog.store.store import engine_of


@pytest.fixture
def store_path(tmp_path):
    """Records of a committed, an aborted and a prepared transaction, and others between them."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        plain = store.producer()

        def say(value):
            plain.send("orders", value=value)
            plain.flush()

        till = store.producer(transactional_id="till")
        till.init_transactions()
        say(b"before")
        for word, commit in ((b"committed", True), (b"aborted", False)):
            till.begin_transaction()
            for number in range(3):
                till.send("orders", value=b"%s %d" % (word, number))
            till.flush()
            if commit:
                till.commit_transaction()
            else:
                till.abort_transaction()
        say(b"between")
        till.begin_transaction()
        till.send("orders", value=b"prepared")
        till.prepare_transaction()
        say(b"behind")
    return path


COMMITTED = ["before", "committed 0", "committed 1", "committed 2", "between"]
ALL = [
    *("before", "committed 0", "committed 1", "committed 2"),
    *("aborted 0", "aborted 1", "aborted 2", "between", "prepared", "behind"),
]


def consumed(store_path, *options):
    answer = call("consume", "orders", "--store", store_path, *options)
    assert answer.status == DONE, answer
    return answer.stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), COMMITTED),
        (("--isolation", "read_committed"), COMMITTED),
        (("--isolation", "read_uncommitted"), ALL),
        (("--max-records", 5), COMMITTED),
        (("--isolation", "read_uncommitted", "--max-records", 5), ALL[:5]),
        (("--offset", 5), ["between"]),
        (("--offset", 5, "--isolation", "read_uncommitted"), ALL[4:]),
    ],
)
def test_what_is_undecided_or_aborted_is_left_out_unless_it_is_asked_for(
    store_path, options, expected
):
    assert consumed(store_path, *options) == expected


def test_an_unknown_isolation_is_wrong_use(store_path):
    answer = call("consume", "orders", "--store", store_path, "--isolation", "serializable")
    assert_mistake(answer, WRONG_USE, "serializable")


def committed_offset(store_path, group="readers", partition=0):
    with eoslog.open(store_path) as store, store.consumer(group) as consumer:
        return consumer.committed(TopicPartition("orders", partition))


def test_a_group_goes_on_where_it_stopped(store_path):
    group = ("--group", "readers")
    assert consumed(store_path, *group, "--max-records", 2) == COMMITTED[:2]
    assert committed_offset(store_path) == 2
    assert consumed(store_path, *group) == COMMITTED[2:]
    assert consumed(store_path, *group) == []
    assert consumed(store_path, "--group", "others") == COMMITTED


def test_a_group_waits_at_an_undecided_transaction(store_path):
    group = ("--group", "readers")
    assert consumed(store_path, *group) == COMMITTED
    call("transactions", "abort", "--transactional-id", "till", "--store", store_path)
    assert consumed(store_path, *group) == ["behind"]


def test_a_group_moves_in_each_partition_by_itself(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=3)
        with store.producer() as producer:
            for number in (0, 1):
                producer.send("orders", value=b"%d" % number, partition=number)
    assert consumed(path, "--group", "readers", "--partition", 1) == ["1"]
    assert [committed_offset(path, partition=number) for number in range(3)] == [None, 1, None]
    assert consumed(path, "--group", "readers") == ["0"]


def test_a_group_that_retention_overtook_begins_at_the_oldest_record(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        with store.consumer("readers") as consumer:
            consumer.commit({TopicPartition("orders", 0): 0})
        with store.producer() as producer:
            producer.send("orders", value=b"old")
            producer.flush()
            engine_of(store).partition("orders", 0).roll()
            producer.send("orders", value=b"new")
        engine_of(store).partition("orders", 0).delete_segments(1)
    assert consumed(path, "--group", "readers") == ["new"]


def test_more_than_one_poll_for_a_group(tmp_path):
    path = tmp_path / "store"
    count = 2 * FETCH_RECORDS + 10
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        with store.producer() as producer:
            for number in range(count):
                producer.send("orders", value=b"%d" % number)
    first = FETCH_RECORDS + 5
    assert len(consumed(path, "--group", "readers", "--max-records", first)) == first
    assert consumed(path, "--group", "readers")[0] == str(first)
    assert committed_offset(path) == count


@pytest.mark.parametrize("options", [("--offset", 3), ("--from-beginning",)])
def test_a_group_says_itself_where_to_begin(store_path, options):
    answer = call("consume", "orders", "--store", store_path, "--group", "readers", *options)
    assert_mistake(answer, WRONG_USE, "--group")


def test_nothing_is_committed_for_a_topic_that_there_is_not(store_path):
    answer = call("consume", "oders", "--store", store_path, "--group", "readers")
    assert_mistake(answer, FAILED, "oders")
    with eoslog.open(store_path) as store:
        assert store.groups() == {}


def test_a_partition_that_is_named_twice_is_printed_once(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=3)
        with store.producer() as producer:
            for number in range(6):
                producer.send("orders", value=b"%d" % number, partition=number % 3)
    named = [word for number in (2, 0, 2, 0) for word in ("--partition", number)]
    assert consumed(path, *named) == ["2", "5", "0", "3"]
    assert consumed(path, *named, "--group", "readers", "--max-records", 3) == ["2", "5", "0"]
    assert consumed(path, *named, "--group", "readers") == ["3"]
