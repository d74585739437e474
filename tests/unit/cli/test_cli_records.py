"""`eoslog produce` and `consume`: lines go in and come out, a name makes a re-run harmless."""

import os
import signal
import subprocess
import sys

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import TopicPartition
from eoslog.cli.records import produce as cli_produce


@pytest.fixture
def store_path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=1)
        store.create_topic("wide", partitions=4)
    return path


def values_in(store_path, topic="orders"):
    with eoslog.open(store_path) as store:
        targets = [
            TopicPartition(topic, number) for number in range(store.topics()[topic].partitions)
        ]
        with store.consumer() as consumer:
            consumer.assign(targets)
            found = []
            while records := consumer.poll(timeout=0.0, max_records=100_000):
                found += [record.value for record in records]
    return found


class Interrupted:
    """A standard input that gives two lines; then Ctrl-C is pressed."""

    def __iter__(self):
        yield from (b"one\n", b"two\n")
        raise KeyboardInterrupt


def test_an_interrupt_tells_how_many_lines_are_in(store_path, monkeypatch):
    monkeypatch.setattr(cli_produce, "standard_input", Interrupted)
    answer = call("produce", "orders", "--store", store_path)
    assert answer.status == FAILED
    assert answer.stderr.splitlines() == [
        "stopped at line 3: the lines before it, 2, are in orders; that line may be too",
        "",
        "Aborted!",
    ]
    assert values_in(store_path) == [b"one", b"two"]


def test_lines_become_records_without_their_line_ends(store_path):
    answer = call("produce", "orders", "--store", store_path, stdin=b"one\ntwo\r\n\nlast")
    assert (answer.status, answer.stdout) == (DONE, "")
    assert "4 records appended to orders" in answer.stderr
    assert values_in(store_path) == [b"one", b"two\r", b"", b"last"]


def test_counts_are_written_alike(store_path):
    one, many = ["produce", "orders", "--store", store_path], b"".join([b"one\n"] * 1_001)
    assert call(*one, stdin=b"one\n").stderr == "1 record appended to orders\n"
    assert call(*one, stdin=many).stderr == "1,001 records appended to orders\n"
    verified = call("verify", "--topic", "orders", "--store", store_path)
    assert verified.stdout == "sound: 1,002 records in 1 partition, 0.0 MB\n"


def test_produce_as_json(store_path):
    answer = call("produce", "orders", "--store", store_path, "--json", stdin="a\nb\n")
    assert answer.json == {"topic": "orders", "lines": 2, "appended": 2, "already_there": 0}


def test_no_input_is_no_record(store_path):
    answer = call("produce", "orders", "--store", store_path, "--json", stdin="")
    assert answer.json["appended"] == 0
    assert values_in(store_path) == []


def test_bytes_that_are_no_text_go_through(store_path):
    call("produce", "orders", "--store", store_path, stdin=b"\xff\x00\n")
    assert values_in(store_path) == [b"\xff\x00"]
    (record,) = call("consume", "orders", "--store", store_path, "--json").json_lines
    assert record["value"] == {"base64": "/wA="}


def test_a_key_sends_a_line_where_kafkas_partitioner_puts_it(store_path):
    lines = "".join(f"key-{number}|value-{number}|x\n" for number in range(50))
    call("produce", "wide", "--key-separator", "|", "--store", store_path, stdin=lines)
    records = call("consume", "wide", "--store", store_path, "--json").json_lines
    assert len(records) == 50
    assert len({record["partition"] for record in records}) == 4
    for record in records:
        assert record["value"] == record["key"].replace("key", "value") + "|x"
        assert record["partition"] == eoslog_partition(record["key"])


def eoslog_partition(key):
    from eoslog.bindings.partitioner import partition_for_key

    return partition_for_key(key.encode(), 4)


def test_a_line_without_its_separator_is_named_and_the_lines_before_it_are_in(store_path):
    answer = call(
        *("produce", "orders", "--key-separator", "=", "--store", store_path), stdin="a=1\nb\n"
    )
    assert_mistake(answer, FAILED, "line 2", "'='", "the lines before it, 1, are in orders")
    assert values_in(store_path) == [b"1"]


def test_a_partition_of_the_caller_s_choice(store_path):
    call("produce", "wide", "--partition", 3, "--store", store_path, stdin="a\nb\n")
    records = call("consume", "wide", "--store", store_path, "--json").json_lines
    assert [record["partition"] for record in records] == [3, 3]


def test_the_same_name_and_input_adds_only_what_is_new(store_path):
    arguments = ("produce", "orders", "--name", "loader", "--store", store_path, "--json")
    assert call(*arguments, stdin="a\nb\n").json["appended"] == 2
    assert call(*arguments, stdin="a\nb\n").json == {
        "topic": "orders",
        "lines": 2,
        "appended": 0,
        "already_there": 2,
    }
    assert call(*arguments, stdin="a\nb\nc\n").json["appended"] == 1
    assert values_in(store_path) == [b"a", b"b", b"c"]
    text = call("produce", "orders", "--name", "loader", "--store", store_path, stdin="a\n").stderr
    assert "0 records appended to orders, 1 were there already" in text


def test_the_same_name_with_keys_counts_each_partition_by_itself(store_path):
    arguments = ("produce", "wide", "--name", "loader", "--key-separator", ":")
    lines = [f"k{number}:{number}\n" for number in range(40)]
    call(*arguments, "--store", store_path, stdin="".join(lines[:25]))
    answer = call(*arguments, "--store", store_path, "--json", stdin="".join(lines))
    assert (answer.json["appended"], answer.json["already_there"]) == (15, 25)
    assert sorted(map(int, values_in(store_path, "wide"))) == list(range(40))


def test_a_name_without_a_fixed_partition_is_wrong_use(store_path):
    answer = call("produce", "wide", "--name", "loader", "--store", store_path, stdin="a\n")
    assert_mistake(answer, WRONG_USE, "--partition", "--key-separator")


@pytest.mark.crash
def test_a_named_run_that_was_killed_goes_on_where_it_stopped(store_path):
    line_count = 30_000
    lines = [b"%06d\n" % number for number in range(line_count)]
    command = [sys.executable, "-m", "eoslog", "produce", "orders", "--name", "loader"]
    with subprocess.Popen([*command, "--store", store_path], stdin=subprocess.PIPE) as process:
        process.stdin.write(b"".join(lines[: line_count // 2]))
        process.stdin.flush()
        os.kill(process.pid, signal.SIGKILL)
    call("produce", "orders", "--name", "loader", "--store", store_path, stdin=b"".join(lines))
    assert values_in(store_path) == [line.rstrip() for line in lines]


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_an_unknown_topic_is_a_failure(store_path, command):
    answer = call(command, "oders", "--store", store_path, stdin="a\n")
    assert_mistake(answer, FAILED, "oders", "UnknownTopicOrPartitionError")


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_an_unknown_partition_is_a_failure(store_path, command):
    answer = call(command, "orders", "--partition", 1, "--store", store_path, stdin="a\n")
    assert_mistake(answer, FAILED, "orders", "UnknownTopicOrPartitionError")


def test_an_unknown_partition_is_a_failure_whatever_the_input(store_path):
    answer = call("produce", "orders", "--partition", 99, "--store", store_path, stdin="")
    assert_mistake(answer, FAILED, "no partition 99 in topic 'orders'")


@pytest.mark.every_nth(3)
@pytest.mark.parametrize(
    ("command", "stream"),
    [
        ("produce orders --store {store}", "standard input"),
        ("consume orders --store {store}", "standard output"),
        ("consume orders --json --store {store}", "standard output"),
        ("dump {store}/orders-0/00000000000000000000.log", "standard output"),
        ("topics --store {store}", "standard output"),
        ("topics --json --store {store}", "standard output"),
        ("verify --store {store}", "standard output"),
        ("check {store}/orders-0", "standard output"),
    ],
)
def test_a_stream_that_is_closed_is_named(store_path, command, stream):
    call("produce", "orders", "--store", store_path, stdin="a\n")
    shell = f'exec "$PYTHON" -m eoslog {command.format(store="$STORE")} <&- >&-'
    done = subprocess.run(
        ["sh", "-c", shell],
        env={**os.environ, "PYTHON": sys.executable, "STORE": str(store_path)},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == FAILED
    assert done.stderr == f"Error: {stream}: it is closed\n"


def test_a_record_that_is_too_large_is_a_failure_and_the_ones_before_it_are_in(tmp_path):
    path = tmp_path / "small"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", config={"max.message.bytes": 1000})
    answer = call("produce", "orders", "--store", path, stdin="a\n" + "b" * 2000 + "\n")
    assert_mistake(answer, FAILED, "RecordTooLargeError")
    assert values_in(path) == [b"a"]


@pytest.fixture
def numbers(store_path):
    """A topic of one partition with the values 0 to 9."""
    lines = "".join(f"{number}\n" for number in range(10))
    call("produce", "orders", "--store", store_path, stdin=lines)
    return store_path


def test_consume_prints_values(numbers):
    answer = call("consume", "orders", "--store", numbers)
    assert (answer.status, answer.stdout.split()) == (DONE, [str(number) for number in range(10)])
    assert call("consume", "orders", "--from-beginning", "--store", numbers).stdout == answer.stdout


def test_consume_as_json(numbers):
    first = call("consume", "orders", "--store", numbers, "--json").json_lines[0]
    assert first.pop("timestamp_ms") > 0
    assert first == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "key": None,
        "value": "0",
        "headers": [],
    }


def test_consume_a_part(numbers):
    answer = call("consume", "orders", "--offset", 7, "--max-records", 2, "--store", numbers)
    assert answer.stdout == "7\n8\n"
    assert call("consume", "orders", "--max-records", 0, "--store", numbers).stdout == ""
    assert call("consume", "orders", "--offset", 10, "--store", numbers).stdout == ""


def test_consume_with_keys(store_path):
    call("produce", "orders", "--key-separator", "=", "--store", store_path, stdin="k=v\n")
    call("produce", "orders", "--store", store_path, stdin="w\n")
    answer = call("consume", "orders", "--key-separator", "\t", "--store", store_path)
    assert answer.stdout == "k\tv\n\tw\n"


def test_consume_some_partitions(store_path):
    for number in range(4):
        call("produce", "wide", "--partition", number, "--store", store_path, stdin=f"{number}\n")
    options = ("--partition", 3, "--partition", 1)
    answer = call("consume", "wide", *options, "--store", store_path)
    assert answer.stdout == "3\n1\n"


def test_more_records_than_one_poll_gives(store_path):
    lines = "".join(f"{number}\n" for number in range(2_500))
    call("produce", "orders", "--store", store_path, stdin=lines)
    assert call("consume", "orders", "--store", store_path).stdout == lines


def test_an_offset_beyond_the_end_is_a_failure_and_nothing_is_printed(numbers):
    answer = call("consume", "orders", "--offset", 11, "--store", numbers)
    assert_mistake(answer, FAILED, "OffsetOutOfRangeError", "orders-0", "0 to 10")
    assert answer.stdout == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--offset", 1, "--from-beginning"), "exclude"),
        (("--offset", -1), "--offset"),
        (("--max-records", -1), "--max-records"),
        (("--partition", -1), "--partition"),
        (("--max-records", "many"), "--max-records"),
    ],
)
def test_wrong_options_are_wrong_use(numbers, options, words):
    assert_mistake(call("consume", "orders", *options, "--store", numbers), WRONG_USE, words)


def test_a_line_that_is_too_long_is_named_and_the_lines_before_it_are_in(store_path):
    long = "x" * 2_000_000
    arguments = ("produce", "orders", "--partition", "0", "--store", store_path)
    answer = call(*arguments, stdin=f"a\nb\n{long}\n")
    assert_mistake(answer, FAILED, "RecordTooLargeError", "at line 3", "it, 2, are in orders")
