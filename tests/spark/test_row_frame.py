"""Files as records: what each format's rows become, what a key is made of, what is refused."""

import gzip
import json

import pytest

from eoslog.spark.commands.input_files import InputFileError, lay_out
from eoslog.spark.commands.row_frame import SESSION_SETTINGS, RowFormat, row_frame
from eoslog.spark.failure_reason import reason_of

pytestmark = pytest.mark.spark


@pytest.fixture
def rows_of(spark, tmp_path):
    """Key and value of every row of files that hold these texts."""

    before = {name: spark.conf.get(name) for name in SESSION_SETTINGS}

    def rows(texts, suffix=".csv", **row_format):
        folder = tmp_path / "laid out"
        folder.mkdir()
        paths = []
        for number, text in enumerate([texts] if isinstance(texts, (str, bytes)) else texts):
            paths.append(tmp_path / f"{number}{suffix}")
            paths[-1].write_bytes(text if isinstance(text, bytes) else text.encode())
        frame = row_frame(spark, lay_out(paths, folder), RowFormat(**row_format))
        return [(row.asDict().get("key"), row.value) for row in frame.collect()]

    yield rows
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def parquet_rows(rows_of, tmp_path):
    """The rows, as JSON texts, of a Parquet file with a column `a` that holds this Arrow array."""
    import pyarrow as pa
    from pyarrow import parquet

    def rows(array, name="a", **options):
        path = tmp_path / "written"
        table = array if isinstance(array, pa.Table) else pa.table({name: array})
        parquet.write_table(table, path, **options)
        return [value for _, value in rows_of(path.read_bytes(), ".parquet")]

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


def test_what_pandas_writes_by_default(rows_of):
    import pandas as pd

    text = pd.DataFrame({"a": ["x", None], "b": [1.5, 2.0]}).to_csv()
    assert [value for _, value in rows_of(text)] == [
        '{"_c0":"0","a":"x","b":"1.5"}',
        '{"_c0":"1","a":null,"b":"2.0"}',
    ]


def test_headers_that_differ_in_case_alone(rows_of):
    assert rows_of("ID,id\n1,2\n", key="id") == [("2", '{"ID":"1","id":"2"}')]


def test_another_delimiter(rows_of):
    assert values(rows_of("a;b\n1,5;2\n", delimiter=";")) == [{"a": "1,5", "b": "2"}]


def test_an_empty_file_beside_another_one(rows_of):
    assert values(rows_of(["", "a\n1\n"])) == [{"a": "1"}]


@pytest.mark.parametrize("name", ["a.b", "`c`", "d e", "x,y", 'q"r', "Ä", "key", "value", "row"])
def test_a_key_of_a_column_whatever_its_name(rows_of, name):
    quoted = name.replace('"', '""')
    ((key, value),) = rows_of(f'"{quoted}",other\n1,2\n', key=name)
    assert (key, json.loads(value)) == ("1", {name: "1", "other": "2"})


def test_several_files_of_one_header(rows_of):
    found = rows_of(["a,b\n1,2\n", "a,b\n3,4\n"])
    assert sorted(row["a"] for row in values(found)) == ["1", "3"]


def test_a_packed_file(rows_of):
    assert values(rows_of(gzip.compress(b"a\n1\n"), ".csv.gz")) == [{"a": "1"}]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("a,b\n1\n", r"0\.csv, line 2: the row does not fit the header"),
        ("a,b\n1,2,3\n", r"0\.csv, line 2: the row does not fit the header"),
        (["a,b\n1,2\n", "a,c\n3,4\n"], r"1\.csv, line 1: the header is a, c, .*0\.csv is a, b"),
        (["a,b\n1,2\n", "A,B\n3,4\n"], r"1\.csv, line 1: the header is A, B, .*0\.csv is a, b"),
        (["a,b\n1,2\n", "b,a\n3,4\n"], r"1\.csv, line 1: the header is b, a, .*0\.csv is a, b"),
    ],
    ids=["short", "long", "another header", "another case", "another order"],
)
def test_a_row_that_does_not_fit_its_header_is_refused_with_its_place(rows_of, texts, words):
    with pytest.raises(InputFileError, match=words):
        rows_of(texts)


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


def test_lines_of_text_keep_bytes_that_are_not_utf_8(spark, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"M\xfcller\r\na\x00b\r\xff")
    folder = tmp_path / "laid out"
    folder.mkdir()
    frame = row_frame(spark, lay_out([path], folder), RowFormat())
    found = [bytes(row.value) for row in frame.selectExpr("CAST(value AS BINARY)").collect()]
    assert found == [b"M\xfcller", b"a\x00b\r\xff"]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".txt.gz"])
def test_a_carriage_return_in_a_line_stays_in_it(rows_of, suffix):
    lines = ['"a"\r ', '\r"b"', '"c"\r\r']
    data = ("\r\n".join(lines[:2]) + "\n" + lines[2] + "\n").encode()
    found = rows_of(gzip.compress(data) if suffix.endswith(".gz") else data, suffix)
    assert [value for _, value in found] == [*lines[:2], '"c"\r']


def test_json_texts_with_a_carriage_return_between_are_refused(rows_of):
    with pytest.raises(Exception, match="a line is not JSON: Extra data at character 5"):
        rows_of('"a"\r"b"\n', ".jsonl")


def test_a_key_of_a_line_that_is_not_utf_8_is_refused(rows_of):
    with pytest.raises(Exception, match="a line is not UTF-8"):
        rows_of(b"M\xfcller\n", ".txt", key="upper(value)")


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_lines_of_utf_16_are_refused(rows_of, suffix, encoding):
    with pytest.raises(InputFileError, match=r"0\..*, line 1, byte 1: .*UTF-16"):
        rows_of('{"a":1}\n'.encode(encoding), suffix)


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".txt.gz"])
def test_a_byte_order_mark_of_utf_8_is_no_part_of_the_first_line(rows_of, suffix):
    data = b"\xef\xbb\xbf1\n2\n"
    found = rows_of(gzip.compress(data) if suffix.endswith(".gz") else data, suffix)
    assert [value for _, value in found] == ["1", "2"]


def test_parquet(spark, tmp_path, rows_of):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, None], "b": [1.5, 2.0], "c": [["x"], []]}), path)
    found = rows_of(path.read_bytes(), ".parquet", key="a")
    assert [key for key, _ in found] == ["1", None]
    assert values(found) == [{"a": 1, "b": 1.5, "c": ["x"]}, {"a": None, "b": 2.0, "c": []}]


MICROSECONDS = {
    0: "1970-01-01T00:00:00.000",
    1: "1970-01-01T00:00:00.000001",
    1000: "1970-01-01T00:00:00.001",
    123_456: "1970-01-01T00:00:00.123456",
    -1: "1969-12-31T23:59:59.999999",
    -12_219_292_800_000_001: "1582-10-14T23:59:59.999999",
    -62_135_596_800_000_000: "0001-01-01T00:00:00.000",
    253_402_300_799_999_999: "9999-12-31T23:59:59.999999",
}
NANOSECONDS = {
    0: "1970-01-01T00:00:00.000",
    1: "1970-01-01T00:00:00.000000001",
    1000: "1970-01-01T00:00:00.000001",
    1_000_000: "1970-01-01T00:00:00.001",
    1_500: "1970-01-01T00:00:00.000001500",
    -1: "1969-12-31T23:59:59.999999999",
    -(2**63) + 2000: "1677-09-21T00:12:43.145226192",
    2**63 - 1: "2262-04-11T23:47:16.854775807",
}


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
@pytest.mark.parametrize(("unit", "times"), [("us", MICROSECONDS), ("ns", NANOSECONDS)])
def test_a_timestamp_has_the_digits_it_needs(parquet_rows, unit, times, zone):
    import pyarrow as pa

    end = "Z" if zone else ""
    found = parquet_rows(pa.array(list(times), pa.timestamp(unit, zone)))
    assert found == [f'{{"a":"{text}{end}"}}' for text in times.values()]


def test_timestamps_in_the_time_zone_of_a_session(parquet_rows, spark):
    import pyarrow as pa

    spark.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    try:
        found = parquet_rows(
            pa.table(
                {
                    "a": pa.array([1, -(2**51)], pa.timestamp("us", "UTC")),
                    # 2:30 on the day on which Paris has no such time.
                    "b": pa.array([1_774_751_400_000_001] * 2, pa.timestamp("us")),
                    "c": pa.array([1_774_751_400_000_000_001] * 2, pa.timestamp("ns")),
                }
            )
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    local = '"b":"2026-03-29T02:30:00.000001","c":"2026-03-29T02:30:00.000000001"'
    assert found == [
        f'{{"a":"1970-01-01T01:00:00.000001+01:00",{local}}}',
        f'{{"a":"1898-08-23T12:12:27.314752+00:09:21",{local}}}',
    ]


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([2**63 - 1, -(2**63), 2**53 + 1], "int64", None),
        ([2**64 - 1, 2**53 + 1], "uint64", None),
        ([2**32 - 1], "uint32", None),
        ([255], "uint8", None),
        ([0.1, 1e300, 5e-324, -0.0, 1.7976931348623157e308, 2e-3], "float64", "float"),
        ([float("nan"), float("inf"), -float("inf")], "float64", ["NaN", "Infinity", "-Infinity"]),
        ([0.1, 16777216.0, 1e-45], "float32", "float32"),
        ([b"\x00\xff", b"", None], "binary", ["AP8=", "", None]),
        ([True, False, None], "bool_", [True, False, None]),
        (["\x00", '\u2028"\\/', "\U0001f600", "", " x "], "string", None),
        ([0, -1, -141_430, -719_162, 2_932_896], "date32", "date"),
        ([None], "null", None),
        ([3], "duration", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parquet_columns_lose_nothing(parquet_rows, values, kind, texts):
    import numpy as np
    import pyarrow as pa

    made = pa.duration("us") if kind == "duration" else getattr(pa, kind)()
    found = [json.loads(row)["a"] for row in parquet_rows(pa.array(values, made))]
    if texts == "float":
        assert [repr(one) for one in found] == [repr(one) for one in values]
    elif texts == "float32":
        assert [np.float32(one) for one in found] == [np.float32(one) for one in values]
    elif texts == "date":
        assert found == ["1970-01-01", "1969-12-31", "1582-10-12", "0001-01-01", "9999-12-31"]
    else:
        assert found == (texts or values)


def test_decimals_keep_their_digits(parquet_rows):
    from decimal import Decimal

    import pyarrow as pa

    numbers = [Decimal("1.10"), Decimal("-0.05"), Decimal("12345678901234567890123456789012345.99")]
    found = parquet_rows(pa.array(numbers, pa.decimal128(38, 2)))
    assert [json.loads(row, parse_float=Decimal)["a"] for row in found] == numbers


def test_nested_values(parquet_rows):
    import pyarrow as pa

    moment, fine = pa.timestamp("us", "UTC"), pa.timestamp("ns")
    kind = pa.struct(
        [
            ("list", pa.list_(moment)),
            ("fine", pa.list_(pa.struct([("x", fine)]))),
            ("times", pa.map_(moment, fine)),
            ("dates", pa.map_(pa.date32(), pa.int64())),
            ("bytes", pa.map_(pa.binary(), pa.binary())),
            ("texts", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ]
    )
    row = {
        "list": [1, None],
        "fine": [{"x": 1}, None, {"x": None}],
        "times": [(1, 1)],
        "dates": [(1, 2)],
        "bytes": [(b"\xff", b"\xff")],
        "texts": [("k", [1]), ("l", None)],
    }
    first, second = map(json.loads, parquet_rows(pa.array([row, None], kind)))
    assert second == {"a": None}
    assert first["a"] == {
        "list": ["1970-01-01T00:00:00.000001Z", None],
        "fine": [{"x": "1970-01-01T00:00:00.000000001"}, None, {"x": None}],
        "times": {"1970-01-01T00:00:00.000001Z": "1970-01-01T00:00:00.000000001"},
        "dates": {"1970-01-02": 2},
        "bytes": {"/w==": "/w=="},
        "texts": {"k": [1], "l": None},
    }


def test_names_of_parquet_columns_stay_as_they_are(parquet_rows):
    import pyarrow as pa

    names = ["a.b", "`c`", "d e", "", 'q"', "ID", "id"]
    (row,) = parquet_rows(pa.table({name: [number] for number, name in enumerate(names)}))
    assert json.loads(row) == {name: number for number, name in enumerate(names)}


def test_timestamps_of_96_bits(parquet_rows):
    import pyarrow as pa

    options = {"use_deprecated_int96_timestamps": True}
    sound = pa.array([1000, -1000, None], pa.timestamp("ns"))
    assert parquet_rows(sound, **options) == [
        '{"a":"1970-01-01T00:00:00.000001Z"}',
        '{"a":"1969-12-31T23:59:59.999999Z"}',
        '{"a":null}',
    ]


def test_timestamps_of_96_bits_that_64_bits_of_nanoseconds_do_not_reach(spark, tmp_path, rows_of):
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    spark.conf.set(name, "INT96")
    try:
        times = "timestamp'9999-12-31 23:59:59.999999', timestamp'0001-01-01 00:00:00.000001'"
        frame = spark.sql(f"SELECT explode(array({times})) AS a").coalesce(1)
        frame.write.parquet(f"file://{tmp_path}/written")
    finally:
        spark.conf.set(name, before)
    (path,) = (tmp_path / "written").glob("*.parquet")
    assert values(rows_of(path.read_bytes(), ".parquet")) == [
        {"a": "9999-12-31T23:59:59.999999Z"},
        {"a": "0001-01-01T00:00:00.000001Z"},
    ]


@pytest.mark.parametrize("nested", [False, True])
def test_nanoseconds_of_96_bits_are_refused(parquet_rows, nested):
    import pyarrow as pa

    kind = pa.timestamp("ns")
    array = pa.array(
        [[{"x": [("k", 1)]}]], pa.list_(pa.struct([("x", pa.map_(pa.string(), kind))]))
    )
    with pytest.raises(InputFileError, match=r"0\.parquet: column a.* has nanoseconds"):
        parquet_rows(
            array if nested else pa.array([1000, 1001], kind), use_deprecated_int96_timestamps=True
        )


@pytest.mark.parametrize("kind", ["time32", "time64", "decimal256", "float16", "nested"])
def test_a_type_that_spark_cannot_read_is_refused_with_its_column(parquet_rows, kind):
    import pyarrow as pa

    types = {
        "time32": pa.time32("ms"),
        "time64": pa.time64("us"),
        "decimal256": pa.decimal256(50, 2),
        "float16": pa.float16(),
        "nested": pa.list_(pa.struct([("x", pa.time64("ns"))])),
    }
    path = "a.element.x" if kind == "nested" else "a"
    with pytest.raises(InputFileError, match=rf"0\.parquet: column {path} is .*, which Spark"):
        parquet_rows(pa.nulls(1, types[kind]))


def test_a_parquet_text_that_is_not_utf_8_fails_the_job(parquet_rows):
    import pyarrow as pa

    texts = pa.array([b"x", b"M\xfcller"]).view(pa.string())
    with pytest.raises(Exception, match=r"column a\.x has a text that is not UTF-8"):
        parquet_rows(pa.StructArray.from_arrays([texts], ["x"]))


def test_two_parquet_columns_of_one_name_are_refused(parquet_rows):
    import pyarrow as pa

    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InputFileError, match=r"0\.parquet: the file has 'a' twice"):
        parquet_rows(table)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all"])
def test_what_is_no_parquet_file_is_named(rows_of, data):
    with pytest.raises(InputFileError, match=r"0\.parquet: not a sound Parquet file"):
        rows_of(data, ".parquet")


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


def test_parquet_columns_that_differ_in_case_stay_apart(tmp_path, rows_of):
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = []
    for table in ({"a": [1]}, {"A": [2]}):
        pq.write_table(pa.table(table), tmp_path / "table")
        texts.append((tmp_path / "table").read_bytes())
    found = sorted(values(rows_of(texts, ".parquet")), key=lambda row: row["A"] or 0)
    assert found == [{"a": 1, "A": None}, {"a": None, "A": 2}]
