"""`eoslog delete-records`: by offsets, by a file of Kafka's, before a time."""

import json

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.fixture
def store_path(tmp_path):
    """Two partitions of 10 records, one a second from noon on; the last of t-1 is of 11:00."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=2)
        for number in range(2):
            times = [NOON_MS + 1000 * index for index in range(10)]
            if number == 1:
                times[-1] = NOON_MS - 3_600_000
            store.producer().append("t", number, [b"x"] * 10, timestamps=times)
    return path


def starts(path):
    with eoslog.open(path) as store:
        return [store.partition(*where).log_start_offset for where in (T0, T1)]


def file_of(tmp_path, *places, **more):
    path = tmp_path / "offsets.json"
    partitions = [{"topic": t, "partition": p, "offset": o} for t, p, o in places]
    path.write_text(json.dumps({"partitions": partitions, "version": 1, **more}))
    return path


def test_offsets(store_path):
    command = ("delete-records", "--offset", "t:0:3", "--offset", "t:1:-1", "--store", store_path)
    assert call(*command, stdin="n\n").status == FAILED
    assert starts(store_path) == [0, 0]
    answer = call(*command, "--yes")
    assert answer.status == DONE
    assert answer.stdout.splitlines()[0].split("   ")[-1].strip() == "log start offset"
    assert [line.split() for line in answer.stdout.splitlines()[-2:]] == [
        ["t", "0", "3"],
        ["t", "1", "10"],
    ]
    assert starts(store_path) == [3, 10]


def test_a_file_of_kafkas_tool(store_path, tmp_path):
    path = file_of(tmp_path, ("t", 0, 3), ("t", 1, -1))
    answer = call("delete-records", "--file", path, "--yes", "--json", "--store", store_path)
    assert answer.json == {
        "executed": True,
        "partitions": [
            {"topic": "t", "partition": 0, "log_start_offset": 3},
            {"topic": "t", "partition": 1, "log_start_offset": 10},
        ],
    }
    assert starts(store_path) == [3, 10]


@pytest.mark.parametrize("before", ["2026-01-31T12:00:03", "2026-01-31T13:00:03.000+01:00"])
def test_before_a_time(store_path, before):
    command = ("delete-records", "--topic", "t", "--before", before, "--store", store_path)
    answer = call(*command, "--dry-run")
    assert answer.status == DONE
    assert [line.split() for line in answer.stdout.splitlines()[-2:]] == [
        ["t", "0", "3", "3", "0"],
        ["t", "1", "3", "3", "0"],
    ]
    assert answer.stderr.splitlines() == [
        "warning: timestamps of t-1 are out of order: 1 records from offset 3 on are before "
        f"{before}, and stay",
        "nothing was deleted",
    ]
    rows = call(*command, "--dry-run", "--json").json
    assert rows["executed"] is False
    assert [one["older_left"] for one in rows["partitions"]] == [0, 1]
    assert starts(store_path) == [0, 0]
    assert call(*command, stdin="y\n").status == DONE
    assert starts(store_path) == [3, 3]


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        ((), WRONG_USE, "one of --offset, --file, --before"),
        (("--topic", "t"), WRONG_USE, "one of --offset, --file, --before"),
        (("--before", "2026-01-31"), WRONG_USE, "--topic and --before go together"),
        (("--offset", "t:0:1", "--topic", "t"), WRONG_USE, "--topic and --before go together"),
        (("--offset", "t:0:1", "--topic", "t", "--before", "2026-01-31"), WRONG_USE, "one of"),
        (("--topic", "t", "--before", "soon"), WRONG_USE, "'soon' is no time like 2026-"),
        (("--topic", "t", "--before", "1969-12-31"), WRONG_USE, "outside"),
        (("--topic", "none", "--before", "2026-01-31"), FAILED, "'none'"),
        (("--offset", "t:0"), WRONG_USE, "'t:0' is not TOPIC:PARTITION:OFFSET"),
        (("--offset", "t:0:-2"), WRONG_USE, "'t:0:-2' is not TOPIC:PARTITION:OFFSET"),
        (("--offset", "t:0:1", "--offset", "t:0:2"), WRONG_USE, "t-0 occurs twice"),
        (("--offset", "t:0:1", "--offset", "t:1:11"), FAILED, "up to offset 10, not 11"),
        (("--offset", "t:7:1"), FAILED, "not 7"),
    ],
)
@pytest.mark.parametrize("more", ["--yes", "--dry-run"])
def test_mistakes(store_path, words, status, named, more):
    assert_mistake(call("delete-records", *words, more, "--store", store_path), status, named)
    assert starts(store_path) == [0, 0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        ("{}", "KeyError('partitions')"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "KeyError('offset')"),
        ('{"partitions": [{"topic": "t", "partition": 0, "offset": "1"}]}', "is not int"),
        ('{"partitions": [{"topic": 1, "partition": 0, "offset": 1}]}', "is not str"),
        ('{"partitions": [], "version": 2}', "has version 2, not 1"),
    ],
)
def test_files_that_are_none_of_kafkas(store_path, tmp_path, text, named):
    path = tmp_path / "offsets.json"
    path.write_text(text)
    answer = call("delete-records", "--file", path, "--yes", "--store", store_path)
    assert_mistake(answer, WRONG_USE, "--file", str(path), named)
    place = ("t", 0, 1)
    answer = call(
        *("delete-records", "--file", file_of(tmp_path, place, place), "--yes"),
        *("--store", store_path),
    )
    assert_mistake(answer, WRONG_USE, "has t-0 twice")
    assert starts(store_path) == [0, 0]
