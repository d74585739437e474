"""A file of lines, JSON lines or CSV, as records, chunk by chunk.

The file is read once, from its beginning to its end: a pipe is as good as a file on a disk. What
was imported before is read too, to see that it is unchanged.

Invariants: a chunk is in memory before its first record is handed out; of the text before a
chunk's end all is in one of its pieces, or was before it; memory is bounded by a chunk, or by the
longest line that the topic can take.
"""

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import BinaryIO, Literal, NamedTuple, cast

from eoslog.bindings.column_set import ColumnSet
from eoslog.bindings.text_records import (
    CsvHeader,
    ParsedRecords,
    checksum,
    csv_row,
    parse_records,
)
from eoslog.columns.topic_limits import TopicLimits
from eoslog.common import clock
from eoslog.common.config import INT64_MAX
from eoslog.errors import (
    EoslogError,
    InvalidRecordError,
    RecordTooLargeError,
    SourceFileChangedError,
)
from eoslog.exchange.file_progress import FileProgress

TextFormat = Literal["lines", "jsonl", "csv"]

CHUNK_BYTES = 16 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_GZIP_MAGIC = b"\x1f\x8b"
# JSON writes a byte as six at most; the rest of a line is small beside the record.
_TEXT_PER_BYTE_MAX = 6
_LINE_REST_BYTES = 1 << 16


class Piece(NamedTuple):
    """Records of a chunk, and the progress after them."""

    columns: ColumnSet
    progress: FileProgress


class TextSource:
    """A text that is imported; `name` is what the user calls it.

    `is_whole`: its last line is one though it has no end. Without that only JSON says so itself.
    `total` is the size of the text, as far as it is known.
    """

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        limits: TopicLimits,
        total_bytes: int | None,
        *,
        is_whole: bool,
    ) -> None:
        self.total = total_bytes
        self._stream = stream
        self._name = name
        self._limits = limits
        self._is_whole = is_whole
        self._line_bytes_max = limits.message_bytes_max * _TEXT_PER_BYTE_MAX + _LINE_REST_BYTES
        # Text that was read and not taken: [_at, _end) of the buffer.
        self._buffer = bytearray(CHUNK_BYTES)
        self._at = self._end = 0
        self._at_end = False
        self._header: CsvHeader | None = None
        self._progress = FileProgress("lines")
        self.error: EoslogError | None = None

    @property
    def progress(self) -> FileProgress:
        """Progress after all that was taken."""
        return self._progress

    @property
    def left_bytes(self) -> int:
        """Size of a last line, at the end of the file, that was not taken."""
        return self._end - self._at

    def begin(self, progress: FileProgress) -> None:
        """Pass over what was imported before.

        Raises SourceFileChangedError if it is not there any more, InvalidRecordError for a text
        that begins as none of its format does.
        """
        self._progress = progress
        self._fill()
        start, lines = 0, 0
        try:
            start, lines = self._read_beginning()
        except InvalidRecordError:
            if progress.position == 0:
                raise
            # Then it has changed.
        if progress.position:
            self._pass_over(progress)
        elif start:
            crc = checksum(memoryview(self._buffer)[:start])
            self._at = start
            self._progress = replace(progress, position=start, crc=crc, line=1 + lines)

    def chunks(self) -> Iterator[Iterator[Piece]]:
        """Yield the pieces of each chunk that has a record, all of which must be taken.

        Ends at the end of the file, or before a record that is refused: `error` says why.
        """
        while self.error is None:
            pieces = self._pieces()
            first = next(pieces, None)
            if first is not None:
                yield chain([first], pieces)
            if self._at_end or self.error is not None:
                return
            self._fill()

    def _pieces(self) -> Iterator[Piece]:
        while self.error is None and self._at < self._end:
            if self._progress.format == "csv" and self._header is None:
                return
            is_tail = False
            parsed = self._parse(self._whole_end(), is_whole=False)
            if parsed is None or (parsed.next == self._at and parsed.fault is None):
                if not self._at_end:
                    self._check_line_size()
                    return
                if not self._is_whole and self._progress.format != "jsonl":
                    return
                parsed = self._parse(self._end, is_whole=True)
                is_tail = True
            if parsed is None or (is_tail and parsed.fault is not None and not self._is_whole):
                return
            self._progress = replace(
                self._progress,
                position=self._progress.position + parsed.next - self._at,
                crc=parsed.crc,
                line=parsed.line,
                records=self._progress.records + parsed.record_count,
                open_line=is_tail,
            )
            self._at = parsed.next
            if parsed.fault is not None:
                self.error = self._placed(parsed.fault, parsed.line)
            if parsed.record_count:
                yield Piece(parsed.columns, self._progress)

    def _whole_end(self) -> int:
        """Return where the last line in memory ends that has an end; of CSV rows that is not
        known yet.
        """
        if self._progress.format == "csv":
            return self._end
        return self._buffer.rfind(b"\n", self._at, self._end) + 1

    def _parse(self, end: int, *, is_whole: bool) -> ParsedRecords | None:
        if end <= self._at:
            return None
        now_ms = clock.now_ms()
        return parse_records(
            cast("TextFormat", self._progress.format),
            self._buffer,
            self._at,
            end,
            line=self._progress.line,
            crc=self._progress.crc,
            timestamp_ms=now_ms,
            is_whole=is_whole,
            header=self._header,
            batch_bytes_max=self._limits.message_bytes_max,
            timestamp_ms_min=max(0, now_ms - self._limits.timestamp_before_max_ms),
            timestamp_ms_max=min(INT64_MAX, now_ms + self._limits.timestamp_after_max_ms),
        )

    def _check_line_size(self) -> None:
        if self._end - self._at > self._line_bytes_max:
            self.error = self._placed(
                RecordTooLargeError(
                    f"it does not end within {self._line_bytes_max} bytes: no record of the topic "
                    f"is that long (max.message.bytes={self._limits.message_bytes_max})"
                ),
                self._progress.line,
            )

    def _placed(self, error: EoslogError, line: int) -> EoslogError:
        hint = ""
        if (
            isinstance(error, InvalidRecordError)
            and self._progress.format == "jsonl"
            and self._progress.records == 0
        ):
            hint = " (JSON lines are those of an export; with format 'lines' each line is a value)"
        return type(error)(f"{self._name}, line {line}: {error}{hint}")

    # The beginning.

    def _read_beginning(self) -> tuple[int, int]:
        """Return where the first record begins, and how many lines come before it."""
        if self._progress.format == "lines":
            return 0, 0
        first = bytes(self._buffer[: min(self._end, len(_BYTE_ORDER_MARK) + 1)])
        if first.startswith(_OTHER_MARKS):
            raise InvalidRecordError(
                f"{self._name}, line 1: a byte-order mark of UTF-16 or UTF-32, and text must be "
                "UTF-8: convert the file first"
            )
        start = len(_BYTE_ORDER_MARK) if first.startswith(_BYTE_ORDER_MARK) else 0
        return self._read_header(start) if self._progress.format == "csv" else (start, 0)

    def _read_header(self, start: int) -> tuple[int, int]:
        text = bytearray(memoryview(self._buffer)[: self._end])
        cells: list[str | None] = [None]
        lines = 0
        while cells == [None]:  # Blank lines.
            try:
                found = csv_row(text, start, self._at_end and self._is_whole)
            except InvalidRecordError as error:
                raise self._placed(error, 1 + lines) from None
            if found is None:
                if self._at_end:
                    return 0, 0
                endless = InvalidRecordError(f"the header does not end within {self._end} bytes")
                raise self._placed(endless, 1 + lines)
            cells, start, line_count = found
            lines += line_count
        names = tuple(name or f"_c{index}" for index, name in enumerate(cells))
        if len(set(names)) < len(names):
            raise self._placed(InvalidRecordError("a column is named twice"), lines)
        self._header = CsvHeader(names)
        return start, lines

    def _pass_over(self, progress: FileProgress) -> None:
        left, crc = progress.position, 0
        while left and self._at < self._end:
            size = min(left, self._end - self._at)
            crc = checksum(memoryview(self._buffer)[self._at : self._at + size], crc)
            self._at += size
            left -= size
            if left:
                self._fill()
        if left:
            raise SourceFileChangedError(
                f"{self._name}: it has {progress.position - left} bytes, and "
                f"{progress.position} bytes of it were imported, {progress.records} records: "
                "nothing was imported now; if it is another file, give it another name"
            )
        if crc != progress.crc:
            raise SourceFileChangedError(
                f"{self._name}: its first {progress.position} bytes were imported, "
                f"{progress.records} records, and have changed since: nothing was imported now; "
                "if it is another file, give it another name"
            )
        if progress.open_line:
            self._end_open_line()

    def _end_open_line(self) -> None:
        """The last line was taken without its end: that comes next, or nothing does."""
        if self._end - self._at < 2:
            self._fill()
        rest = bytes(self._buffer[self._at : min(self._end, self._at + 2)])
        if rest in (b"", b"\r"):  # Of "\r\n" perhaps the first half.
            self._at, self._at_end = self._end, True
            return
        size = 1 if rest[:1] == b"\n" else 2
        if size == 2 and rest != b"\r\n":
            raise SourceFileChangedError(
                f"{self._name}: line {self._progress.line - 1} was imported when it was the last "
                "and had no line end, and has grown since: nothing was imported now"
            )
        crc = checksum(memoryview(self._buffer)[self._at : self._at + size], self._progress.crc)
        self._at += size
        self._progress = replace(
            self._progress,
            position=self._progress.position + size,
            crc=crc,
            open_line=False,
        )

    # Reading.

    def _fill(self) -> None:
        """Read until the buffer is full, or to the end of the file."""
        kept = self._end - self._at
        if kept == len(self._buffer):
            self._buffer = self._buffer + bytes(kept)  # One line is longer.
        view = memoryview(self._buffer)
        view[:kept] = view[self._at : self._end]
        self._at, self._end = 0, kept
        try:
            while self._end < len(view) and not self._at_end:
                size = self._stream.readinto(view[self._end :])  # type: ignore[attr-defined]
                self._at_end = not size
                self._end += size or 0
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRecordError(f"{self._name}: a damaged gzip file: {error}") from error


@contextmanager
def text_source(
    stream: io.BufferedReader, name: str, limits: TopicLimits, *, is_whole: bool
) -> Iterator[TextSource]:
    """Yield the text of a stream as a source; it is unpacked if it is gzip's."""
    if stream.peek(2).startswith(_GZIP_MAGIC):
        with gzip.open(stream, "rb") as text:
            yield TextSource(cast("BinaryIO", text), name, limits, None, is_whole=is_whole)
        return
    try:
        total_bytes = os.fstat(stream.fileno()).st_size or None
    except OSError:
        total_bytes = None  # It is no file, or one in memory.
    yield TextSource(stream, name, limits, total_bytes, is_whole=is_whole)
