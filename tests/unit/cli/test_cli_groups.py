"""`eoslog groups`: list, describe, delete, reset-offsets."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from harness.crew import Member

import eoslog
from eoslog import OffsetAndMetadata, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store_path(tmp_path):
    """Two partitions of 10 records; group g stands at 4 of the first, h at 10 of both."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=2)
        for number in range(2):
            store.producer().append("t", number, [b"x"] * 10)
        store.consumer(group="g").commit({T0: 4})
        store.consumer(group="h").commit({T0: 10, T1: 10})
    return path


def offsets(store_path, group="g"):
    with eoslog.open(store_path) as store:
        return {where: one.offset for where, one in store.groups().get(group, {}).items()}


@pytest.mark.parametrize("words", [("groups",), ("groups", "list")])
def test_list(store_path, words):
    answer = call(*words, "--store", store_path, "--json")
    assert answer.json == [{"group": "g", "partitions": 1}, {"group": "h", "partitions": 2}]
    lines = call(*words, "--store", store_path).stdout.splitlines()
    assert [line.split() for line in lines if line.split()[0] in "gh"] == [["g", "1"], ["h", "2"]]


def test_describe_has_kafkas_columns(store_path):
    answer = call("groups", "describe", "g", "--store", store_path)
    heading, row = (answer.stdout.splitlines()[number].split() for number in (0, -1))
    assert "  ".join(heading) == (
        "GROUP  TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST  CLIENT-ID"
    )
    assert row == ["g", "t", "0", "4", "10", "6", "-", "-", "-"]


def test_describe_as_json(store_path):
    answer = call("groups", "describe", "--all-groups", "--store", store_path, "--json")
    assert [(row["group"], row["partition"], row["lag"]) for row in answer.json] == [
        ("g", 0, 6),
        ("h", 0, 0),
        ("h", 1, 0),
    ]
    assert answer.json[0] == {
        "group": "g",
        "topic": "t",
        "partition": 0,
        "current_offset": 4,
        "log_end_offset": 10,
        "lag": 6,
        "consumer_id": None,
        "host": None,
        "client_id": None,
    }


def test_delete(store_path):
    answer = call("groups", "delete", "g", "--yes", "--store", store_path)
    assert (answer.status, answer.stdout) == (DONE, "deleted g\n")
    assert offsets(store_path) == {}
    assert offsets(store_path, "h") == {T0: 10, T1: 10}
    answer = call("groups", "delete", "h", "--store", store_path, "--json", stdin="y\n")
    assert answer.json == {"deleted": ["h"]}


def test_delete_asks_and_deletes_all_or_none(store_path):
    assert call("groups", "delete", "g", "--store", store_path, stdin="n\n").status == FAILED
    answer = call("groups", "delete", "g", "none", "--yes", "--store", store_path)
    assert_mistake(answer, FAILED, "'none'")
    assert offsets(store_path) == {T0: 4}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--topic", "t", "--to-earliest"), {T0: 0, T1: 0}),
        (("--topic", "t", "--to-latest"), {T0: 10, T1: 10}),
        (("--topic", "t:1", "--to-offset", "7"), {T0: 4, T1: 7}),
        (("--topic", "t:0,1", "--to-offset", "99"), {T0: 10, T1: 10}),
        (("--all-topics", "--shift-by", "3"), {T0: 7}),
        (("--topic", "t:0", "--shift-by", "-3"), {T0: 1}),
        (("--topic", "t:0", "--shift-by", "-30"), {T0: 0}),
        (("--all-topics", "--to-latest"), {T0: 10}),
        (("--topic", "t", "--to-current"), {T0: 4, T1: 10}),
        (("--topic", "t", "--to-datetime", "2020-01-01T00:00:00.000"), {T0: 0, T1: 0}),
        (("--topic", "t", "--to-datetime", "2999-01-01T00:00:00Z"), {T0: 10, T1: 10}),
        (("--topic", "t", "--by-duration", "P1DT2H3M4.5S"), {T0: 0, T1: 0}),
        (("--topic", "t", "--by-duration", "PT0S"), {T0: 10, T1: 10}),
    ],
)
def test_reset(store_path, words, expected):
    command = ("groups", "reset-offsets", "g", "--store", store_path, *words)
    dry = call(*command, "--json")
    assert dry.json["executed"] is False
    assert offsets(store_path) == {T0: 4}
    answer = call(*command, "--execute", "--json")
    assert answer.json["executed"] is True
    assert answer.json["offsets"] == dry.json["offsets"]
    assert offsets(store_path) == expected


@pytest.mark.parametrize(
    ("moment", "offset"),
    [
        ("2026-01-31T12:00:00.000", 0),
        ("2026-01-31T12:00:00.001", 1),
        ("2026-01-31T12:00:01", 1),
        ("2026-01-31T12:00:01.000Z", 1),
        ("2026-01-31T13:00:01+01:00", 1),
        ("2026-01-31T12:00:01.001", 2),
        ("1969-12-31T23:59:59", 0),
    ],
)
def test_reset_to_a_time_goes_to_the_first_record_since(store_path, moment, offset):
    noon_ms = 1_769_860_800_000
    with eoslog.open(store_path) as store:
        store.create_topic("dated")
        store.producer().append("dated", 0, [b"x"] * 2, timestamps=[noon_ms, noon_ms + 1000])
    call(
        *("groups", "reset-offsets", "g", "--topic", "dated", "--to-datetime", moment),
        *("--execute", "--store", store_path),
    )
    assert offsets(store_path)[TopicPartition("dated", 0)] == offset


def test_delete_offsets(store_path):
    command = ("groups", "delete-offsets", "h", "--topic", "t:0", "--store", store_path)
    assert call(*command, stdin="n\n").status == FAILED
    assert offsets(store_path, "h") == {T0: 10, T1: 10}
    answer = call(*command, "--yes")
    assert (answer.status, answer.stdout) == (DONE, "deleted the offsets of h at t-0\n")
    assert offsets(store_path, "h") == {T1: 10}
    answer = call(
        *("groups", "delete-offsets", "h", "--topic", "t", "--json", "--store", store_path),
        stdin="y\n",
    )
    assert answer.json == {"group": "h", "deleted": ["t-0", "t-1"]}
    assert offsets(store_path, "h") == {}
    assert offsets(store_path) == {T0: 4}


def test_reset_shows_what_it_would_do(store_path):
    answer = call(
        *("groups", "reset-offsets", "g", "--topic", "t:0", "--to-earliest"),
        *("--store", store_path),
    )
    assert answer.stdout.splitlines()[0].split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    assert answer.stdout.splitlines()[-1].split() == ["g", "t", "0", "0"]
    assert "--execute" in answer.stderr


def test_reset_makes_a_group(store_path):
    answer = call(
        *("groups", "reset-offsets", "new", "--topic", "t", "--to-latest", "--execute"),
        *("--store", store_path),
    )
    assert answer.status == DONE
    assert offsets(store_path, "new") == {T0: 10, T1: 10}


def test_reset_keeps_nothing_beside_the_offset(store_path):
    with eoslog.open(store_path) as store:
        store.consumer(group="g").commit({T0: OffsetAndMetadata(4, "note")})
    call(
        *("groups", "reset-offsets", "g", "--all-topics", "--to-earliest", "--execute"),
        *("--store", store_path),
    )
    with eoslog.open(store_path) as store:
        assert store.groups() == {"g": {T0: OffsetAndMetadata(0)}, "h": store.groups()["h"]}


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("describe",), WRONG_USE, "--all-groups"),
        (("describe", "g", "--all-groups"), WRONG_USE, "--all-groups"),
        (("describe", "none"), FAILED, "'none'"),
        (("delete",), WRONG_USE, "GROUP"),
        (("delete", "none", "--yes"), FAILED, "'none'"),
        (("reset-offsets", "g", "--topic", "t"), WRONG_USE, "--to-earliest"),
        (("reset-offsets", "g", "--to-latest"), WRONG_USE, "--all-topics"),
        (
            ("reset-offsets", "g", "--topic", "t", "--to-latest", "--to-earliest"),
            WRONG_USE,
            "--to-earliest",
        ),
        (
            ("reset-offsets", "g", "--topic", "t", "--to-latest", "--execute", "--dry-run"),
            WRONG_USE,
            "--dry-run",
        ),
        (("reset-offsets", "g", "--topic", "none", "--to-latest"), FAILED, "'none'"),
        (("reset-offsets", "g", "--topic", "t:x", "--to-latest"), WRONG_USE, "TOPIC:0,1"),
        (("reset-offsets", "g", "--topic", f"t:{'9' * 5000}", "--to-latest"), WRONG_USE, "TOPIC:0"),
        (("reset-offsets", "g", "--topic", "t:7", "--to-latest"), FAILED, "not 7"),
        (("reset-offsets", "g", "--topic", "t:1", "--shift-by", "1"), FAILED, "t-1"),
        (("reset-offsets", "none", "--all-topics", "--to-latest"), FAILED, "'none'"),
        *(
            (("reset-offsets", "g", "--topic", "t", option, text), WRONG_USE, option)
            for option, text in (
                *(
                    ("--to-datetime", "today"),
                    ("--to-datetime", "2026-02-30"),
                    ("--to-datetime", ""),
                ),
                *(("--by-duration", "P"), ("--by-duration", "PT"), ("--by-duration", "7d")),
                *(("--by-duration", "P1W"), ("--by-duration", "")),
            )
        ),
        (("delete-offsets", "g", "--yes"), WRONG_USE, "--topic"),
        (("delete-offsets", "none", "--topic", "t", "--yes"), FAILED, "'none'"),
        (("delete-offsets", "g", "--topic", "none", "--yes"), FAILED, "'none'"),
        (("delete-offsets", "g", "--topic", "t:7", "--yes"), FAILED, "t-7"),
        (("reset-offsets", "", "--topic", "t", "--to-latest"), WRONG_USE, "empty"),
    ],
)
def test_mistakes(store_path, words, status, named):
    assert_mistake(call("groups", *words, "--store", store_path), status, named)
    assert offsets(store_path) == {T0: 4}


# Groups with members, in another process.


@pytest.fixture
def member(store_path):
    """A process with a consumer that subscribed to t in group g."""
    with Member() as process:
        process.run(
            "import eoslog\n"
            "store = eoslog.open(path)\n"
            "consumer = store.consumer(group='g', config={'client.id': 'billing'})\n"
            "consumer.subscribe(['t'])\n"
            "consumer.poll(timeout=0)\n",
            path=str(store_path),
        )
        yield process


def test_describe_names_who_reads(store_path, member):
    rows = call("groups", "describe", "g", "--store", store_path, "--json").json
    assert [(row["partition"], row["current_offset"], row["lag"]) for row in rows] == [
        (0, 4, 6),
        (1, None, None),
    ]
    assert {row["client_id"] for row in rows} == {"billing"}
    assert all(row["consumer_id"].startswith("billing-") and row["host"] for row in rows)


def test_describe_members_and_state(store_path, member):
    command = ("groups", "describe", "g", "--store", store_path)
    (row,) = call(*command, "--members", "--json").json
    assert (row["client_id"], row["partition_count"], row["partitions"]) == (
        "billing",
        2,
        ["t-0", "t-1"],
    )
    heading = call(*command, "--members").stdout.splitlines()[0].split()
    assert heading == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "PROCESS"]
    assert call(*command, "--state", "--json").json == [
        {"group": "g", "strategy": "range", "state": "Stable", "generation": 1, "member_count": 1}
    ]
    row = call(*command, "--state").stdout.splitlines()[-1].split()
    assert row == ["g", "range", "Stable", "1", "1"]
    answer = call("groups", "describe", "h", "--state", "--store", store_path)
    assert answer.stdout.splitlines()[-1].split() == ["h", "-", "Empty", "0", "0"]
    assert_mistake(call(*command, "--state", "--members"), WRONG_USE, "exclude")


def test_a_group_with_members_is_left_as_it_is(store_path, member):
    answer = call(
        *("groups", "reset-offsets", "g", "--all-topics", "--to-earliest", "--execute"),
        *("--store", store_path),
    )
    assert_mistake(answer, FAILED, "1 members")
    answer = call("groups", "delete", "g", "--yes", "--store", store_path)
    assert_mistake(answer, FAILED, "1 members")
    answer = call("groups", "delete-offsets", "g", "--topic", "t", "--yes", "--store", store_path)
    assert_mistake(answer, FAILED, "GroupSubscribedToTopicError")
    member.kill()
    assert call("groups", "delete", "g", "--yes", "--store", store_path).status == DONE
