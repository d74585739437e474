"""`eoslog consume --from` and `--to`, and topics by a regular expression."""

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import TopicPartition
from eoslog.common import clock

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
HOUR_MS = 3_600_000


@pytest.fixture
def path(tmp_path):
    """Records 0 to 5 of each partition, an hour apart from noon on."""
    path = tmp_path / "store"
    times = [NOON_MS + number * HOUR_MS for number in range(6)]
    with eoslog.open(path, create=True) as store:
        store.create_topics({"orders": 2, "orders.old": 1, "bills": 1})
        for topic, partition in (("orders", 0), ("orders", 1), ("orders.old", 0), ("bills", 0)):
            values = [b"%d" % number for number in range(6)]
            store.producer().append(topic, partition, values, timestamps=times)
    return path


def consumed(path, topic, *options, form="%t-%p:%s "):
    answer = call("consume", topic, *options, "-f", form, "--store", path)
    assert answer.status == DONE, answer
    return answer.stdout.split()


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--from", "2026-01-31T14:00:00"), "2345"),
        (("--from", "2026-01-31T14:00:00+01:00"), "12345"),
        (("--from", "2026-01-31T14:00:00.001"), "345"),
        (("--from", "2026-01-31T14:00", "--to", "2026-01-31T16:00"), "23"),
        (("--to", "2026-01-31T12:00"), ""),
        (("--from", "2030-01-01"), ""),
        (("--from", "1960-01-01", "--to", "2"), "01"),
        (("--from", "4"), "45"),
        (("--from", "4", "--to", "2"), ""),
        (("--offset", "1", "--to", "3"), "12"),
        (("--from", "latest"), ""),
        (("--to", "latest"), "012345"),
        (("--from", "P36500D", "--max-records", 2), "01"),
        (("--from", "PT0S"), ""),
    ],
)
@pytest.mark.parametrize("form", ["-f", "--json"])
def test_records_from_a_place_to_another(path, options, numbers, form):
    words = ("consume", "bills", *options, "--store", path)
    if form == "--json":
        values = [one["value"] for one in call(*words, "--json").json_lines]
    else:
        values = call(*words, "-f", "%s ").stdout.split()
    assert "".join(values) == numbers


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (("consume", "bills", "--from"), "no age like PT10M, no offset and not latest"),
        (("consume", "bills", "--to"), "no age like PT10M, no offset and not latest"),
        (("get-offsets", "--time"), "no age like PT10M, not latest, earliest or max-timestamp"),
        (("export", "bills", "--from"), "no offset"),
    ],
)
def test_what_a_bound_may_be_is_in_the_error(path, words, other):
    answer = call(*words, "soon", "--store", path)
    assert_mistake(answer, WRONG_USE, "'soon' is no time like 2026-01-31T12:00", other)


def test_an_age_is_counted_from_now(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        times = [clock.now_ms() - 3 * HOUR_MS, clock.now_ms() - HOUR_MS]
        store.producer().append("orders", 0, [b"old", b"new"], timestamps=times)
    assert consumed(path, "orders", "--from", "PT2H", form="%s ") == ["new"]


def test_a_group_goes_up_to_a_place_and_on_from_there(path):
    with eoslog.open(path) as store, store.producer() as producer:
        producer.append("bills", 0, [b"6", b"7"])  # One batch, which is cut below.
    assert consumed(path, "bills", "--group", "g", "--to", "7", form="%s") == ["0123456"]
    with eoslog.open(path, read_only=True) as store:
        assert store.groups()["g"][TopicPartition("bills", 0)].offset == 7
    assert consumed(path, "bills", "--group", "g", form="%s") == ["7"]


def test_a_batch_is_cut_by_an_end_as_json_too(path):
    words = ("consume", "bills", "--group", "g", "--json", "--store", path)
    assert [one["value"] for one in call(*words, "--to", "2").json_lines] == ["0", "1"]
    assert [one["value"] for one in call(*words, "--max-records", 2).json_lines] == ["2", "3"]
    assert [one["value"] for one in call(*words).json_lines] == ["4", "5"]


def test_topics_by_a_regular_expression(path):
    found = consumed(path, "^ord", "--from", "5")
    assert found == ["orders-0:5", "orders-1:5", "orders.old-0:5"]
    assert consumed(path, "^orders$", "--from", "5") == ["orders-0:5", "orders-1:5"]
    assert consumed(path, "^(bills|x)", "--from", "5") == ["bills-0:5"]
    assert consumed(path, "^.*", "--partition", 1, "--from", "5") == ["orders-1:5"]
    assert consumed(path, "^nothing") == []
    assert (
        consumed(path, "^b|orders.old", "--group", "g", "--max-records", 7)[-1] == "orders.old-0:0"
    )
    assert consumed(path, "^b|orders.old", "--group", "g") == [
        f"orders.old-0:{number}" for number in range(1, 6)
    ]


@pytest.mark.parametrize(
    ("topic", "options", "words"),
    [
        ("^(", (), ["TOPIC", "regular expression"]),
        ("bills", ("--from", "noon"), ["--from", "noon"]),
        ("bills", ("--to", "PX"), ["--to", "PX"]),
        ("bills", ("--from", "1", "--offset", "1"), ["--offset and --from exclude"]),
        ("bills", ("--from", "1", "--from-beginning"), ["exclude"]),
        ("bills", ("--from", "1", "--group", "g"), ["--group"]),
        ("bills", ("--format", "%s", "--json"), ["--json and --format exclude"]),
        ("bills", ("--format", "%s", "--key-separator", ":"), ["exclude"]),
    ],
)
def test_wrong_options_are_wrong_use(path, topic, options, words):
    assert_mistake(call("consume", topic, *options, "--store", path), WRONG_USE, *words)


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_an_offset_that_is_not_there_is_a_failure(path, option):
    answer = call("consume", "bills", option, "7", "--store", path)
    assert_mistake(answer, FAILED, "OffsetOutOfRangeError", "bills-0", "0 to 6")
