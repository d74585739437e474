"""Files as records: what each format's rows become, what a key is made of, what is refused."""

import gzip
import json

import pytest

from eoslog.spark.failure_reason import reason_of
from eoslog.spark.input_files import InputFileError, lay_out
from eoslog.spark.row_frame import RowFormat, row_frame

pytestmark = pytest.mark.spark


@pytest.fixture
def rows_of(spark, tmp_path):
    """Key and value of every row of files that hold these texts."""

    def rows(texts, suffix=".csv", **row_format):
        folder = tmp_path / "laid out"
        folder.mkdir()
        paths = []
        for number, text in enumerate([texts] if isinstance(texts, (str, bytes)) else texts):
            paths.append(tmp_path / f"{number}{suffix}")
            paths[-1].write_bytes(text if isinstance(text, bytes) else text.encode())
        frame = row_frame(spark, lay_out(paths, folder), RowFormat(**row_format))
        return [(row.asDict().get("key"), row.value) for row in frame.collect()]

    return rows


def values(rows):
    return [json.loads(value) for _, value in rows]


def test_a_csv_row_becomes_json_of_its_texts_as_they_are(rows_of):
    found = rows_of("carrier,flight,delay\nUA,0015,-2.50\n")
    assert found == [(None, '{"carrier":"UA","flight":"0015","delay":"-2.50"}')]


def test_an_empty_cell_is_null_and_is_not_left_out(rows_of):
    assert values(rows_of("a,b,c\n1,,3\n")) == [{"a": "1", "b": None, "c": "3"}]


def test_quotes_commas_and_backslashes(rows_of):
    text = 'a,b\n"x, ""y""",C:\\dir\n"\\",z\n'
    assert values(rows_of(text)) == [{"a": 'x, "y"', "b": "C:\\dir"}, {"a": "\\", "b": "z"}]


def test_texts_beyond_ascii(rows_of):
    assert values(rows_of("ä,b\n“ü”,\U0001f600\n")) == [{"ä": "“ü”", "b": "\U0001f600"}]


def test_line_ends_inside_quotes_need_multiline(rows_of):
    assert values(rows_of('a,b\n"1\n2",3\n', multiline=True)) == [{"a": "1\n2", "b": "3"}]


def test_several_files_of_one_header(rows_of):
    found = rows_of(["a,b\n1,2\n", "a,b\n3,4\n"])
    assert sorted(row["a"] for row in values(found)) == ["1", "3"]


def test_a_packed_file(rows_of):
    assert values(rows_of(gzip.compress(b"a\n1\n"), ".csv.gz")) == [{"a": "1"}]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("a,b\n1\n", "Malformed CSV record: 1 "),
        ("a,b\n1,2,3\n", "Malformed CSV record: 1,2,3 "),
        (["a,b\n1,2\n", "a,c\n3,4\n"], "Header: a, c Schema: a, b"),
    ],
    ids=["short", "long", "another header"],
)
def test_a_row_that_does_not_fit_its_header_fails_the_job(rows_of, texts, words):
    with pytest.raises(Exception, match="Exception") as caught:
        rows_of(texts)
    assert words in reason_of(caught.value)


def test_a_csv_file_without_rows(rows_of):
    assert rows_of("a,b\n") == []


def test_an_empty_file_has_no_columns(rows_of):
    with pytest.raises(InputFileError, match="no columns"):
        rows_of("")


@pytest.mark.parametrize(
    ("row_format", "key"),
    [
        ({"key": "carrier"}, "UA"),
        ({"key": "carrier,flight"}, "UA:15"),
        ({"key": " carrier , flight "}, "UA:15"),
        ({"key": "carrier,flight", "key_separator": ""}, "UA15"),
        ({"key": "carrier,none", "key_separator": "-"}, "UA-"),
        ({"key": "none"}, None),
        ({"key": "concat(carrier, '/', CAST(flight AS INT) + 1)"}, "UA/16"),
    ],
)
def test_keys(rows_of, row_format, key):
    ((found, _),) = rows_of("carrier,flight,none\nUA,15,\n", **row_format)
    assert found == key


def test_a_key_of_an_unknown_column_is_refused_with_the_ones_there_are(rows_of):
    with pytest.raises(InputFileError, match=r"no column flght.*carrier, flight"):
        rows_of("carrier,flight\nUA,15\n", key="carrier,flght")


def test_lines_of_json_stay_as_they_are(rows_of):
    lines = ['{"b": 1.50,  "a":null}', "[1, 2]", '"x"']
    assert [value for _, value in rows_of("\n".join(lines) + "\n\n  \n", ".jsonl")] == lines


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a", "x"),
        ("a,b", "x:7"),
        ("gone", None),
        ("get_json_object(value, '$.c.d')", "deep"),
    ],
)
def test_keys_of_json_lines(rows_of, key, expected):
    ((found, _),) = rows_of('{"a":"x","b":7,"c":{"d":"deep"}}\n', ".jsonl", key=key)
    assert found == expected


def test_a_line_that_is_not_json_fails_the_job(rows_of):
    with pytest.raises(Exception, match="a line is not JSON") as caught:
        rows_of('{"a":1}\n{"a":\n', ".jsonl")
    assert "a line is not JSON" in reason_of(caught.value)


def test_lines_of_text_stay_as_they_are(rows_of):
    found = rows_of("one\n\n  two\t\n", ".txt", key="length(value)")
    assert found == [("3", "one"), ("0", ""), ("6", "  two\t")]


def test_parquet(spark, tmp_path, rows_of):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, None], "b": [1.5, 2.0], "c": [["x"], []]}), path)
    found = rows_of(path.read_bytes(), ".parquet", key="a")
    assert [key for key, _ in found] == ["1", None]
    assert values(found) == [{"a": 1, "b": 1.5, "c": ["x"]}, {"a": None, "b": 2.0, "c": []}]


def test_parquet_files_of_different_columns_lose_none(tmp_path, rows_of):
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = []
    for table in ({"a": [1]}, {"a": [2], "b": [3]}):
        path = tmp_path / "table"
        pq.write_table(pa.table(table), path)
        texts.append(path.read_bytes())
    found = sorted(values(rows_of(texts, ".parquet")), key=lambda row: row["a"])
    assert found == [{"a": 1, "b": None}, {"a": 2, "b": 3}]
