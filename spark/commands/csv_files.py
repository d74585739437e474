"""CSV files as Parquet files of their texts, so that Spark has nothing to guess in them.

Spark's own CSV reader replaces bytes that are not UTF-8, drops rows of white space, takes `""` for
null, and ends a row inside quotes. So the driver reads CSV, with Arrow, and Spark reads what the
driver wrote. Invariants:

- a cell is written as its text: nothing is trimmed, converted, or taken for a number;
- an empty cell is null, and an empty cell in quotes is an empty text;
- a row that is not as RFC 4180 has it, or that does not fit the header, is refused with its place;
- a carriage return ends a line with a line feed alone.
"""

import csv
import io
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eoslog.spark.commands.input_files import InputFileError, opened_input
from eoslog.spark.commands.text_faults import check_no_utf_16, fault_in_utf8

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_DELIMITER = ","
QUOTE = '"'
# A row group is made of a block: small ones let Spark split a file evenly. A row must fit a block.
BLOCK_BYTES = (1 << 20, 1 << 26, (1 << 31) - 1)
_READ_BYTES = 1 << 20


def check_delimiter(delimiter: str) -> str:
    """Return the delimiter, one character; the two characters `\\t` stand for a tab.

    Raises InputFileError for what cannot delimit cells.
    """
    found = "\t" if delimiter == "\\t" else delimiter
    if len(found) != 1 or not found.isascii() or found in '"\r\n\0':
        raise InputFileError(
            f"delimiter {delimiter!r}: it must be one ASCII character, and no quote or line end"
        )
    return found


def csv_as_parquet(
    source: Path, name: str, target: Path, *, delimiter: str, multiline: bool
) -> list[str]:
    """Write the rows of a CSV file as a Parquet file of strings, and return the column names.

    A file without a header has no columns, and makes no Parquet file. `name` is what the user calls
    the file. A column whose header is empty is named `_c` and its index, as Spark does.
    `multiline` allows line ends inside quotes. Raises InputFileError with the place of what is
    wrong.
    """
    import pyarrow as pa

    with _named_errors(source, name):
        check_no_utf_16(source, name)
        with closing(_rows(source, name, delimiter, multiline)) as rows:
            _, header = next(rows, (0, None))
            has_rows = next(rows, None) is not None
        if header is None:
            return []
        columns = _columns(header, name)
        if not has_rows:
            _write([], target, columns)
            return columns
        # Arrow is lenient with these, and the strict reader slower.
        if _has_quotes_or_lone_returns(source, name):
            _check_rows(source, name, delimiter, multiline)
        for block_bytes in BLOCK_BYTES:
            try:
                _convert(source, name, target, header, columns, delimiter, multiline, block_bytes)
                break
            except pa.ArrowInvalid as error:
                _check_rows(source, name, delimiter, multiline)
                # No row is broken: one is longer than a block.
                if block_bytes == BLOCK_BYTES[-1]:
                    raise InputFileError(f"{name}: {error}") from error
    return columns


def csv_header(source: Path, name: str, delimiter: str) -> list[str]:
    """Return the column names of a CSV file, as `csv_as_parquet` does. Raises InputFileError."""
    with _named_errors(source, name):
        check_no_utf_16(source, name)
        with closing(_rows(source, name, check_delimiter(delimiter), multiline=True)) as rows:
            _, header = next(rows, (0, []))
    return _columns(header, name)


@contextmanager
def _named_errors(source: Path, name: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputFileError(fault_in_utf8(source, name) or f"{name}: {error}") from error


def _columns(header: Sequence[str], name: str) -> list[str]:
    columns = [text or f"_c{index}" for index, text in enumerate(header)]
    for column, count in Counter(columns).items():
        if count > 1:
            places = [str(index + 1) for index, text in enumerate(columns) if text == column]
            raise InputFileError(
                f"{name}: the header names column {column!r} {count} times, "
                f"as columns {' and '.join(places)}"
            )
        if "\0" in column:
            raise InputFileError(f"{name}: the name of column {column!r} has a NUL: is it UTF-16?")
    return columns


def _has_quotes_or_lone_returns(source: Path, name: str) -> bool:
    with opened_input(source, name) as file:
        while data := file.read(_READ_BYTES):
            if data.endswith(b"\r"):
                data += file.read(1)
            if QUOTE.encode() in data or data.count(b"\r") > data.count(b"\r\n"):
                return True
    return False


def _check_rows(source: Path, name: str, delimiter: str, multiline: bool) -> None:
    """Raise InputFileError for the first row that is broken or does not fit the header."""
    cells = 0
    for line, row in _rows(source, name, delimiter, multiline):
        cells = cells or len(row)
        if len(row) != cells:
            raise InputFileError(
                f"{name}, line {line}: the row does not fit the header, which has {cells} columns: "
                f"it has {len(row)}"
            )


def _rows(
    source: Path, name: str, delimiter: str, multiline: bool
) -> Generator[tuple[int, list[str]], None, None]:
    """The rows of a file, each with the number of its first line; blank lines are left out."""
    first_line = 1
    taken = False
    line = ""

    def lines() -> Iterator[str]:
        nonlocal taken, line
        for line in text:
            if taken and not multiline:
                raise InputFileError(
                    f"{name}, line {first_line}: the line ends inside quotes: say --multiline if "
                    "rows have line ends in their cells"
                )
            taken = True
            yield line

    limit = csv.field_size_limit(min(sys.maxsize, (1 << 63) - 1))
    try:
        with (
            opened_input(source, name) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text,
        ):
            reader = csv.reader(lines(), delimiter=delimiter, strict=True)
            for row in reader:
                if line.endswith("\r"):
                    raise InputFileError(
                        f"{name}, line {reader.line_num}, byte {len(line.encode())}: 0x0d, a "
                        "carriage return: a line ends with a line feed, or both; in a cell it must "
                        "be in quotes"
                    )
                if row:
                    yield first_line, row
                first_line = reader.line_num + 1
                taken = False
    except csv.Error as error:
        raise InputFileError(
            f"{name}, line {first_line}: {error} (a quote inside quotes must be doubled)"
        ) from error
    finally:
        csv.field_size_limit(limit)


def _convert(
    source: Path,
    name: str,
    target: Path,
    header: Sequence[str],
    columns: Sequence[str],
    delimiter: str,
    multiline: bool,
    block_bytes: int,
) -> None:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    with opened_input(source, name) as file:
        reader = arrow_csv.open_csv(
            file,
            arrow_csv.ReadOptions(block_size=block_bytes),
            arrow_csv.ParseOptions(
                delimiter=delimiter, quote_char=QUOTE, newlines_in_values=multiline
            ),
            arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in header},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        _write(reader, target, columns)


def _write(batches: "Iterable[pa.RecordBatch]", target: Path, columns: Sequence[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([pa.field(name, pa.string()) for name in columns])
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in batches:
            if batch.num_rows:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
