"""`eoslog ingest`: files land once, a second run is a no-op, a mistake changes nothing."""

import gzip
import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from read_back import records_in, staged_files, values_in

import eoslog
from eoslog.spark.commands.ingest import ingest
from eoslog.spark.commands.input_files import InputFileError
from eoslog.spark.commands.row_frame import SESSION_SETTINGS, RowFormat

pytestmark = pytest.mark.spark

ROWS = [{"carrier": carrier, "flight": number} for carrier in ("UA", "B6") for number in range(50)]


def csv_of(rows):
    return "carrier,flight\n" + "".join(f"{row['carrier']},{row['flight']}\n" for row in rows)


def jsonl_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def store(tmp_path, spark):
    """Where the store will be; `ingest` makes it, and finds the session that is running."""
    return tmp_path / "store"


@pytest.fixture
def flights_csv(tmp_path):
    path = tmp_path / "flights.csv"
    path.write_text(csv_of(ROWS))
    return path


def parquet_file(folder, rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "flights.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def text_file(name, make):
    def write(folder, rows):
        path = folder / name
        data = make(rows).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def zip_file(folder, rows):
    path = folder / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", csv_of(rows))
    return path


@pytest.mark.parametrize(
    "write",
    [
        text_file("flights.csv", csv_of),
        text_file("flights.csv.gz", csv_of),
        zip_file,
        text_file("flights.jsonl", jsonl_of),
        parquet_file,
    ],
    ids=["csv", "csv.gz", "csv.zip", "jsonl", "parquet"],
)
def test_every_row_of_every_format_lands_once(store, tmp_path, write):
    path = write(tmp_path, ROWS)
    answer = call(
        *("ingest", path, "--topic", "flights", "--store", store, "--json"),
        *("--key", "carrier,flight", "--partitions", 3),
    )
    assert answer.status == DONE, answer.stderr
    assert (answer.json["committed"], answer.json["records"]) == (True, len(ROWS))
    records = records_in(store, "flights")
    found = sorted((row["carrier"], int(row["flight"])) for row in map(json.loads, values(records)))
    assert found == sorted((row["carrier"], row["flight"]) for row in ROWS)
    assert len({record.partition for record in records}) == 3
    for record in records:
        row = json.loads(record.value)
        assert record.key.decode() == f"{row['carrier']}:{row['flight']}"
    assert staged_files(store) == []


def test_the_command_of_the_page_lands_each_row(store, tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    (command,) = re.findall(r"^\$ eoslog (ingest .*)$", page.read_text(), re.MULTILINE)
    zip_file(tmp_path, ROWS).rename(tmp_path / "flights.csv.zip")
    monkeypatch.chdir(tmp_path)
    answer = call(*shlex.split(command))
    assert answer.status == DONE, answer.stderr
    records = records_in(tmp_path / "data", "flights")
    assert {record.key for record in records} == {
        f"{row['carrier']}{row['flight']}".encode() for row in ROWS
    }


def values(records):
    return [record.value for record in records]


def test_text_lands_line_by_line(store, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("one\ntwo, with a comma\n\nlast")
    answer = call("ingest", path, "--topic", "notes", "--store", store)
    assert answer.status == DONE
    assert answer.stdout.startswith("4 records landed in notes in ")
    assert values_in(store, "notes") == [b"one", b"two, with a comma", b"", b"last"]


def test_the_format_can_be_said(store, tmp_path):
    path = tmp_path / "flights.csv"
    path.write_text("one,two\n")
    call("ingest", path, "--topic", "lines", "--format", "text", "--store", store)
    assert values_in(store, "lines") == [b"one,two"]


def test_several_files_land_as_one_job(store, tmp_path):
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_text(csv_of(ROWS[number::3]))
    answer = call("ingest", *paths, "--topic", "flights", "--store", store, "--json")
    assert answer.json["records"] == len(ROWS)
    assert len(values_in(store, "flights")) == len(ROWS)


def test_the_same_contents_land_once_whatever_their_name(store, flights_csv, tmp_path):
    copy = tmp_path / "elsewhere" / "copy.csv"
    copy.parent.mkdir()
    copy.write_text(flights_csv.read_text())
    first = call("ingest", flights_csv, "--topic", "flights", "--store", store, "--json").json
    again = call("ingest", copy, "--topic", "flights", "--store", store, "--json").json
    assert (first["committed"], again["committed"], again["records"]) == (True, False, 0)
    assert first["app_id"] == again["app_id"]
    text = call("ingest", copy, "--topic", "flights", "--store", store).stdout
    assert text.startswith("nothing to do: ")
    assert len(values_in(store, "flights")) == len(ROWS)


def test_what_was_landed_is_not_landed_otherwise(store, flights_csv, tmp_path):
    """With other options the records would be other ones; a wrong option is named first."""
    key = ("--key", "carrier,flight")
    arguments = ("ingest", flights_csv, "--topic", "flights", "--store", store)
    assert call(*arguments, *key).status == DONE
    for options in (
        (),
        ("--key", "flight"),
        (*key, "--key-separator", "-"),
        ("--key", "upper(carrier)"),
        ("--format", "text"),
    ):
        assert_mistake(call(*arguments, *options), WRONG_USE, "landed with another key or")
    for options, words in (
        (("--key", "carier"), "no column carier for the key; there are carrier, flight"),
        (("--key", "flight", "--delimiter", ";"), "no column flight for the key"),
    ):
        assert_mistake(call(*arguments, *options), WRONG_USE, words)
    for options in (
        key,
        ("--key", " carrier , flight "),
        (*key, "--multiline"),
        (*key, "--format", "csv"),
    ):
        answer = call(*arguments, *options)
        assert (answer.status, answer.stdout[:13]) == (DONE, "nothing to do")
    assert len(values_in(store, "flights")) == len(ROWS)


def test_a_job_of_an_older_version_is_in_whatever_the_options(store, flights_csv):
    arguments = ("ingest", flights_csv, "--topic", "flights", "--id", "nightly", "--store", store)
    with eoslog.open(store, create=True) as opened:
        opened.commit_staged("nightly", 0, [], run_id="9f86d081884c7d659a2feaa0c55ad015")
    assert call(*arguments, "--key", "flight").stdout.startswith("nothing to do")


def test_an_id_lands_once_whatever_the_contents(store, flights_csv):
    arguments = ("--topic", "flights", "--id", "nightly", "--store", store, "--json")
    assert call("ingest", flights_csv, *arguments).json["app_id"] == "nightly"
    flights_csv.write_text(csv_of(ROWS[:1]))
    assert call("ingest", flights_csv, *arguments).json["committed"] is False
    assert len(values_in(store, "flights")) == len(ROWS)


def test_other_contents_or_another_topic_land_beside(store, flights_csv):
    for topic, rows in (("flights", ROWS), ("flights", ROWS[:7]), ("other", ROWS)):
        flights_csv.write_text(csv_of(rows))
        assert call("ingest", flights_csv, "--topic", topic, "--store", store).status == DONE
    assert len(values_in(store, "flights")) == len(ROWS) + 7
    assert len(values_in(store, "other")) == len(ROWS)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("gone.csv", "--topic", "flights"), WRONG_USE, "gone.csv"),
        ((".", "--topic", "flights"), WRONG_USE, "directory"),
        (("flights.csv",), WRONG_USE, "--topic"),
        (("--topic", "flights"), WRONG_USE, "FILES"),
        (("flights.csv", "--topic", "flights", "--key", "carier"), WRONG_USE, "carrier, flight"),
        (("flights.csv", "--topic", "flights", "--key", "1 +"), WRONG_USE, "1 +"),
        (("flights.csv", "--topic", "flights", "--partitions", "0"), WRONG_USE, "--partitions"),
        (("flights.csv", "--topic", "a b"), FAILED, "InvalidTopicError"),
        (("flights.csv", "--topic", "flights", "--format", "xml"), WRONG_USE, "--format"),
        (("flights.csv", "--topic", "flights", "--format", "parquet"), WRONG_USE, "Parquet"),
        (("flights.csv", "--topic", "flights", "--format", "jsonl"), FAILED, "not JSON"),
        (("unknown.dat", "--topic", "flights"), WRONG_USE, "--format"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_lands(
    store, flights_csv, tmp_path, monkeypatch, arguments, status, words
):
    (tmp_path / "unknown.dat").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert_mistake(call("ingest", *arguments, "--store", store), status, words)
    if store.exists():
        with eoslog.open(store) as opened:
            assert sum(opened.partition(name, 0).log_end_offset for name in opened.topics()) == 0


def test_another_number_of_partitions_than_the_topic_has_is_refused(store, flights_csv):
    call("ingest", flights_csv, "--topic", "flights", "--store", store, "--partitions", 2)
    flights_csv.write_text(csv_of(ROWS[:3]))
    answer = call("ingest", flights_csv, "--topic", "flights", "--store", store, "--partitions", 3)
    assert_mistake(answer, WRONG_USE, "2 partitions, not 3")


def test_a_row_in_the_middle_that_does_not_fit_fails_all_and_can_be_mended(store, tmp_path, spark):
    path = tmp_path / "flights.csv"
    path.write_text(csv_of(ROWS) + "UA,1,surplus\n" + csv_of(ROWS)[15:])
    with pytest.raises(InputFileError, match=r"flights\.csv, line 102: .* 2 columns: it has 3"):
        ingest([path], topic="flights", store=store, app_id="nightly", spark=spark)
    assert "flights" not in topics_of(store)
    path.write_text(csv_of(ROWS))
    result = ingest([path], topic="flights", store=store, app_id="nightly", spark=spark)
    assert (result.committed, result.records) == (True, len(ROWS))


def topics_of(store):
    with eoslog.open(store) as opened:
        return opened.topics()


@pytest.mark.parametrize(
    ("name", "data", "status", "words"),
    [
        ("a.csv", b"a\nx\nM\xfcller\n", WRONG_USE, "a.csv, line 3, byte 2 (byte 6 of the file)"),
        ("a.csv.gz", gzip.compress(b"a\nM\xfc\n", mtime=0), WRONG_USE, "a.csv.gz, line 2, byte 2 "),
        (
            "a.csv.gz",
            gzip.compress(b"a\n1\n" * 99, mtime=0)[:-9],
            WRONG_USE,
            "a.csv.gz: a damaged gzip",
        ),
        ("a.csv", b'a\n"1\n2"\n', WRONG_USE, "--multiline"),
        ("a.csv", b"a,a\n1,2\n", WRONG_USE, "column 'a' 2 times"),
        ("a.jsonl", b'{"a":1}\n{"a":"M\xfc"}\n', FAILED, "a.jsonl, line 2, byte 8 (byte 16 "),
        ("a.jsonl", b'{"a":1}\n\n{"a":\n', FAILED, "a.jsonl, line 3: it is not JSON"),
        (
            "a.jsonl.gz",
            gzip.compress(b"1\nx\n", mtime=0),
            FAILED,
            "a.jsonl.gz, line 2: it is not JSON",
        ),
        ("a.jsonl", '{"a":1}\n'.encode("utf-16"), WRONG_USE, "UTF-16"),
        ("a.txt", "a\n".encode("utf-16"), WRONG_USE, "UTF-16"),
        ("a.parquet", b"PAR1", WRONG_USE, "a.parquet: not a sound Parquet file"),
    ],
)
def test_what_is_broken_in_a_file_is_named_and_nothing_lands(
    store, tmp_path, name, data, status, words
):
    (tmp_path / name).write_bytes(data)
    answer = call("ingest", tmp_path / name, "--topic", "t", "--store", store)
    assert_mistake(answer, status, words)
    assert str(tmp_path / name) in answer.stderr
    assert "t" not in topics_of(store) or values_in(store, "t") == []


def test_a_damaged_packed_file_of_lines_is_named(store, tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"x\n" * 1000)[:-9])
    answer = call("ingest", path, "--topic", "t", "--store", store)
    assert answer.status != DONE
    assert "a.txt.gz: a damaged gzip file" in answer.stderr


def test_a_member_of_a_zip_file_is_named(store, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/b.csv", b"a\n\xff\n")
    answer = call("ingest", tmp_path / "a.zip", "--topic", "t", "--store", store)
    assert_mistake(answer, WRONG_USE, "a.zip/in/b.csv, line 2, byte 1 ")


def test_a_parquet_text_that_is_not_utf_8_is_named(store, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    texts = pa.array([b"x", b"M\xfcller"]).view(pa.string())
    parquet.write_table(pa.table({"a": texts}), tmp_path / "a.parquet")
    answer = call("ingest", tmp_path / "a.parquet", "--topic", "t", "--store", store)
    assert_mistake(answer, FAILED, "a.parquet, column a, rows 1 to 2: ")


def test_a_parquet_map_that_has_a_key_twice_is_named(store, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    maps = pa.array([[("x", 1)], None, [("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int64()))
    inside = pa.array(
        [{"of": [one]} for one in maps.to_pylist()], pa.struct([("of", pa.list_(maps.type))])
    )
    for name, column in (("a", maps), ("b", inside)):
        parquet.write_table(pa.table({"number": [1, 2, 3], name: column}), tmp_path / "a.parquet")
        answer = call("ingest", tmp_path / "a.parquet", "--topic", "t", "--store", store)
        assert_mistake(answer, FAILED, f"a.parquet, column {name}, row 3: a map has a key twice")


@pytest.mark.parametrize("delimiter", [";", "\t", "\\t"])
def test_a_delimiter_can_be_given(store, tmp_path, delimiter):
    path = tmp_path / "a.csv"
    path.write_text("a;b\n1;2\n".replace(";", delimiter.replace("\\t", "\t")))
    call("ingest", path, "--topic", "t", "--delimiter", delimiter, "--store", store)
    assert values_in(store, "t") == [b'{"a":"1","b":"2"}']


def test_a_delimiter_of_two_characters_is_a_mistake(store, flights_csv):
    answer = call("ingest", flights_csv, "--topic", "t", "--delimiter", "::", "--store", store)
    assert_mistake(answer, WRONG_USE, "one ASCII character")


def test_the_settings_of_the_session_are_put_back(store, tmp_path, spark):
    before = {name: spark.conf.get(name) for name in SESSION_SETTINGS}
    path = tmp_path / "a.csv"
    path.write_text("ID,id\n1,2\n")
    ingest([path], topic="t", store=store, spark=spark)
    assert {name: spark.conf.get(name) for name in SESSION_SETTINGS} == before


def test_a_large_csv_file_is_read_by_several_tasks(store, tmp_path, spark):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f"{row},{'x' * 100}\n" for row in range(60_000)))
    tasks = tmp_path / "tasks"
    tasks.mkdir()

    def note(batches):
        from pyspark import TaskContext

        (tasks / str(TaskContext.get().partitionId())).touch()
        return batches

    result = ingest(
        [path], topic="t", store=store, spark=spark, split_bytes=1 << 20, each_task=note
    )
    assert result.records == 60_000
    assert len(list(tasks.iterdir())) >= 5


def test_no_session_is_started_for_what_is_in_the_log(store, flights_csv, spark, monkeypatch):
    options = {"topic": "flights", "store": store, "row_format": RowFormat(key="carrier")}
    ingest([flights_csv], spark=spark, **options)
    monkeypatch.setattr("eoslog.spark.commands.ingest.session", None)
    assert ingest([flights_csv], **options).committed is False


def test_a_missing_file_is_named_before_anything_is_made(store):
    with pytest.raises(InputFileError, match=r"gone\.csv"):
        ingest(["gone.csv"], topic="flights", store=store)
    assert not store.exists()
