"""CSV files as Parquet: every cell keeps its text, and what is broken is named with its place."""

import csv
import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog.spark.commands import csv_files
from eoslog.spark.commands.csv_files import check_delimiter, csv_as_parquet
from eoslog.spark.commands.input_files import InputFileError

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def rows_of(tmp_path):
    """The columns and rows of a CSV file that holds these bytes."""
    from pyarrow import parquet

    def rows(data, delimiter=",", multiline=False, name="a.csv"):
        source, target = tmp_path / name, tmp_path / "a.parquet"
        source.write_bytes(data if isinstance(data, bytes) else data.encode())
        columns = csv_as_parquet(source, name, target, delimiter=delimiter, multiline=multiline)
        if not columns:
            return columns, []
        table = parquet.read_table(target)
        assert table.column_names == columns
        return columns, [tuple(row.values()) for row in table.to_pylist()]

    return rows


@pytest.mark.parametrize(
    "cell",
    [
        *("007", "1e5", "1_000", "2020-1-1", "NaN", "null", "NULL", "true", "-0.0", "#x"),
        *(
            " x ",
            "\t",
            "   ",
            "\x00",
            "a\x00b",
            "C:\\dir\\",
            "x'y",
            'r"s"t',
            "\u2028",
            "ü",
            "\U0001f600",
        ),
        *("\ufeff", "\ufffd", "=1+1", "\x7f\x1f"),
    ],
)
def test_a_cell_keeps_its_text(rows_of, cell):
    assert rows_of(f"a,b\n{cell},1\n") == (["a", "b"], [(cell, "1")])
    assert rows_of(f"a\n{cell}\n") == (["a"], [(cell,)])
    quoted = cell.replace('"', '""')
    assert rows_of(f'a,b\n"{quoted}",1\n') == (["a", "b"], [(cell, "1")])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_line_ends_of_every_system(rows_of, end, last):
    text = end.join(["a,b", "1,2", '"3",4']) + (end if last else "")
    assert rows_of(text) == (["a", "b"], [("1", "2"), ("3", "4")])


def test_line_ends_may_be_mixed(rows_of):
    assert rows_of("a,b\n1,2\r\n3,4\n5,6\n")[1] == [("1", "2"), ("3", "4"), ("5", "6")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a\n1\r2\n", "line 2, byte 2"),
        ("a,b\n1,2\r\n3,4\r5,6\n", "line 3, byte 4"),
        ("a\r1\r", "line 1, byte 2"),
        ("a\n1\n\r\n\r", "line 4, byte 1"),
        ('a\n"1"\r"2"\n', "line 2, byte 4"),
        ('a\n"x\r\nü"\r2\n', "line 3, byte 4"),
        ("a\n" + "1\n" * 600_000 + "12\r\n1\r2\n", "line 600003, byte 2"),
    ],
)
def test_a_carriage_return_in_a_line_is_refused(rows_of, text, place):
    """One without quotes: readers of CSV take it for the end of a row."""
    with pytest.raises(InputFileError, match=rf"a\.csv, {place}: 0x0d"):
        rows_of(text, multiline=True)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("inside", ["\n", "\r\n", "\r", "\n\n", "\n,\n"])
def test_line_ends_inside_quotes_stay_as_they_are_with_multiline(rows_of, end, inside):
    text = end.join(["a,b", f'"1{inside}2",3', '4,"5"', ""])
    assert rows_of(text, multiline=True)[1] == [(f"1{inside}2", "3"), ("4", "5")]


@pytest.mark.parametrize("text", ['a\n"1\n2"\nx\n', 'a,b\nx,"1\ny,2"\n', 'a,b\n1,2\nx,"1\r\n2"\n'])
def test_a_line_end_inside_quotes_is_refused_without_multiline(rows_of, text):
    line = 3 if "1,2" in text else 2
    with pytest.raises(InputFileError, match=rf"a\.csv, line {line}: .*--multiline"):
        rows_of(text)


def test_an_empty_cell_is_null_and_an_empty_text_in_quotes_is_not(rows_of):
    assert rows_of('a,b\n,""\n"",\n')[1] == [(None, ""), ("", None)]


def test_rows_of_white_space_and_of_empty_cells_are_rows(rows_of):
    assert rows_of("a\nx\n  \ny\n")[1] == [("x",), ("  ",), ("y",)]
    assert rows_of("a\tb\n1\t2\n\t\n", delimiter="\t")[1] == [("1", "2"), (None, None)]
    assert rows_of("a b\n1 2\n \n", delimiter=" ")[1] == [("1", "2"), (None, None)]


def test_blank_lines_are_left_out(rows_of):
    assert rows_of("\n\na,b\n\n1,2\n\r\n\n")[1] == [("1", "2")]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " ", ":"])
def test_delimiters(rows_of, delimiter):
    rows = [["x,y", "a;b"], ["p|q r", "s\tt:u"]]
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([["a", "b"], *rows])
    assert rows_of(file.getvalue(), delimiter=delimiter)[1] == [tuple(row) for row in rows]


def test_a_tab_can_be_written_with_a_backslash():
    assert check_delimiter("\\t") == check_delimiter("\t") == "\t"


@pytest.mark.parametrize("delimiter", ["", ",,", '"', "\n", "\r", "\0", "é", "\\n"])
def test_what_cannot_delimit_cells_is_refused(delimiter):
    with pytest.raises(InputFileError, match="delimiter"):
        check_delimiter(delimiter)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        (",a,", ["_c0", "a", "_c2"]),
        ('"","a"', ["_c0", "a"]),
        ("ID,id", ["ID", "id"]),
        ("a.b,`c`,d e", ["a.b", "`c`", "d e"]),
        ('"a,b","c""d"', ["a,b", 'c"d']),
        (" a ,b", [" a ", "b"]),
        ("\ufeffa,b", ["a", "b"]),
        ('\ufeff"a",b', ["a", "b"]),
    ],
)
def test_headers(rows_of, header, columns):
    cells = ",".join("1" for _ in columns)
    assert rows_of(f"{header}\n{cells}\n") == (columns, [("1",) * len(columns)])


def test_a_header_over_two_lines(rows_of):
    assert rows_of('"a\nb",c\n1,2\n', multiline=True) == (["a\nb", "c"], [("1", "2")])


@pytest.mark.parametrize("text", ["a,b,a\n1,2,3\n", ",_c0\n1,2\n"])
def test_a_name_that_the_header_has_twice_is_refused(rows_of, text):
    with pytest.raises(InputFileError, match=r"a\.csv: the header names column '(a|_c0)' 2 times"):
        rows_of(text)


def test_a_file_without_a_header_has_no_columns_and_one_without_rows_has(rows_of):
    assert rows_of("") == rows_of("\n\r\n") == rows_of("\ufeff") == ([], [])
    assert rows_of("a,b") == rows_of("a,b\n") == (["a", "b"], [])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a,b\n1,2\nM\xfcller,1\n", r"line 3, byte 2 \(byte 10 of the file\): 0xfc is not UTF-8"),
        (b"a,b\r\nM\xf8ller,1\r\n", r"line 2, byte 2 \(byte 7 of the file\): 0xf8"),
        (b'a,b\n"\xe9",1\n', r"line 2, byte 2 "),
        (b"\xe9,b\n1,2\n", r"line 1, byte 1 "),
        (b"a\n\xed\xa0\x80\n", r"line 2, byte 1 "),
        (b"a\n" + b"x\n" * 1_000_000 + b"\xc3\n", r"line 1000002, byte 1 "),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        ("a,b\n1,2\n".encode("utf-16-le"), "UTF-16"),
        ("a,b\n1,2\n".encode("utf-32"), "UTF-16 or UTF-32"),
        (b"a,b\n1\n", "line 2: the row .* 2 columns: it has 1"),
        (b"a,b\n1,2\n3,4,5\n", "line 3: the row .* 2 columns: it has 3"),
        (b"a,b\n1,2\n   \n", "line 3: the row .* 2 columns: it has 1"),
        (b'a,b\n"1","2"\n3\n', "line 3: the row .* 2 columns: it has 1"),
        (b'a,b\n1,"2" \n', "line 2: .*expected after"),
        (b'a,b\n"1\\"2",3\n', "line 2: .*expected after"),
        (b'a,b\n1,"2\n', "line 2: "),
        (b"\x1f\x8b\x08\x00", "not UTF-8"),
    ],
)
def test_what_is_broken_is_refused_with_its_place(rows_of, data, words):
    for multiline in (False, True):
        with pytest.raises(InputFileError, match=rf"a\.csv(, |: |.*){words}"):
            rows_of(data, multiline=multiline)


def test_a_packed_file(rows_of):
    assert rows_of(gzip.compress(b"a,b\n1,2\n"), name="a.csv.gz")[1] == [("1", "2")]
    two = gzip.compress(b"a,b\n1,2\n") + gzip.compress(b"3,4\n")
    assert rows_of(two, name="a.csv.gz")[1] == [("1", "2"), ("3", "4")]


@pytest.mark.parametrize("damage", ["cut", "flipped", "not packed"])
def test_a_damaged_packed_file_is_named(rows_of, damage):
    data = bytearray(gzip.compress(b"a,b\n" + b"1,2\n" * 1000))
    if damage == "cut":
        del data[-9:]
    elif damage == "flipped":
        data[-6] ^= 1
    else:
        data = bytearray(b"a,b\n1,2\n")
    with pytest.raises(InputFileError, match=r"a\.csv\.gz: a damaged gzip file"):
        rows_of(bytes(data), name="a.csv.gz")


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_row_may_be_longer_than_a_block(rows_of, quote):
    cell = "x" * (3 << 20)
    assert rows_of(f"a,b\n1,2\n{quote}{cell}{quote},3\n4,5\n")[1] == [
        ("1", "2"),
        (cell, "3"),
        ("4", "5"),
    ]


_CELLS = st.text(st.sampled_from('a"\n\r, ;\t\\#é\0'), max_size=6)
_ENDS = {ord("\n"): None, ord("\r"): None}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_the_csv_module_writes_is_read_alike(tmp_path_factory, data):
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("csv")
    width = data.draw(st.integers(1, 3))
    quoting = data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    # The module leaves other line ends than its own without quotes.
    cells = _CELLS if quoting == csv.QUOTE_ALL else _CELLS.map(lambda cell: cell.translate(_ENDS))
    rows = data.draw(st.lists(st.lists(cells, min_size=width, max_size=width), max_size=5))
    delimiter = data.draw(st.sampled_from(",;\t |"))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([["a", "b", "c"][:width], *rows])
    source = folder / "a.csv"
    source.write_bytes(file.getvalue().encode())
    blocks = csv_files.BLOCK_BYTES
    csv_files.BLOCK_BYTES = (data.draw(st.integers(8, 64)), *blocks)
    try:
        csv_as_parquet(source, "a.csv", folder / "a", delimiter=delimiter, multiline=True)
    finally:
        csv_files.BLOCK_BYTES = blocks
    found = [list(row.values()) for row in parquet.read_table(folder / "a").to_pylist()]
    assert [[cell or "" for cell in row] for row in found] == rows
    if quoting == csv.QUOTE_ALL:
        assert found == rows
