"""Reader of histories: it checks lines of JSON and gathers them in columns.

The last line of an operation counts: a recorder writes one with the outcome "unknown" before a call
that it may not survive, and another after it.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from json.decoder import JSONDecodeError
from os import PathLike, fspath
from os.path import realpath
from typing import Any, NoReturn, TypeVar

import numpy as np

from eoslog.checking.history import (
    FIELDS,
    ISOLATION_LEVELS,
    KINDS,
    NEVER_NS,
    NONE,
    OFFSET_MAX,
    OK,
    OUTCOMES,
    PARTITION_MAX,
    PARTITIONS_MAX,
    UNKNOWN,
    Columns,
    Flags,
    History,
    HistoryError,
    Names,
    Numbers,
    Operations,
    Positions,
    Reads,
    Sends,
)

# Fields of one line of a history: each has its type and range, or the error names it.


_INT64_MAX = (1 << 63) - 1
_EPOCH_MAX = (1 << 31) - 1
TIME_MAX = 1 << 61
# JSON's escape of a surrogate, and the surrogates that "surrogateescape" makes of wrong bytes.
_SURROGATE = re.compile(r"\\u[dD]|[\ud800-\udfff]")
# These may hold anything: an error may name a file whose name is no UTF-8.
_UNREAD = ("error", "note")
_ALL_FIELDS = frozenset[str]().union(*FIELDS.values())


class RepeatedNameError(ValueError):
    """An object of JSON has a name twice."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, each name once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedNameError(next(name for name in names if names.count(name) > 1))
    return found


class Place:
    """Place in a history: the file and the line that are being read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line_number = 0

    def refuse(self, field: str, reason: str) -> NoReturn:
        """Raise HistoryError for a field of this line."""
        raise HistoryError(self.path, self.line_number, field, reason)

    def check_text(self, line: dict[str, Any], text: str) -> None:
        """Refuse bytes that are not UTF-8 and halves of surrogate pairs: no report can print them.

        `text` is the source of `line`.
        """
        if not _SURROGATE.search(text):
            return
        for field, found in line.items():
            try:
                json.dumps(
                    [field, found if field not in _UNREAD else ""], ensure_ascii=False
                ).encode()
            except UnicodeEncodeError:
                self.refuse(field, "not UTF-8, or half of a surrogate pair")

    def check_names(self, line: dict[str, Any], kind: str, fields: frozenset[str]) -> None:
        """Refuse unknown fields, and fields of other kinds that are not null."""
        for name in sorted(line.keys() - fields):
            if line[name] is not None or name not in _ALL_FIELDS:
                self.refuse(name, f"a {kind} has no such field")

    def text(self, line: dict[str, Any], field: str) -> str:
        """Return a text that must be there and not be empty."""
        found = line.get(field)
        if type(found) is not str or not found:
            self.refuse(field, _wrong("a text", line, field))
        return found

    def moment(self, line: dict[str, Any], field: str) -> int:
        """Return nanoseconds of a monotonic clock."""
        found = line.get(field)
        if type(found) is not int or not 0 <= found <= TIME_MAX:
            self.refuse(field, _wrong("nanoseconds, a whole number from 0 on", line, field))
        return found

    def number(self, line: dict[str, Any], field: str, maximum: int) -> int:
        """Return a whole number from 0 to `maximum`; NONE if there is none."""
        found = line.get(field)
        if found is None:
            return NONE
        if type(found) is not int or not 0 <= found <= maximum:
            self.refuse(field, _wrong(f"a whole number from 0 to {maximum}", line, field))
        return found

    def offset(self, found: object, field: str) -> int:
        """Return an offset of a partition."""
        if type(found) is not int or not 0 <= found <= OFFSET_MAX:
            self.refuse(field, f"{found!r:.80} is not an offset from 0 to {OFFSET_MAX}")
        return found

    def producer(self, line: dict[str, Any]) -> tuple[int, int]:
        """Return the producer's id and epoch, both or neither."""
        producer_id = self.number(line, "producer_id", _INT64_MAX)
        epoch = self.number(line, "producer_epoch", _EPOCH_MAX)
        if (producer_id == NONE) != (epoch == NONE):
            missing = "producer_id" if producer_id == NONE else "producer_epoch"
            self.refuse(missing, "an id and an epoch say something together only")
        return producer_id, epoch

    def mapping(self, line: dict[str, Any], field: str) -> dict[str, Any]:
        """Return an object whose names are partitions."""
        found = line.get(field)
        if type(found) is not dict:
            self.refuse(field, _wrong("an object of partitions", line, field))
        return found

    def values(self, line: dict[str, Any]) -> list[Any]:
        """Return the values of a send."""
        one = line.get("value")
        found = line.get("values")
        if (type(one) is str or type(one) is int) and found is None:
            return [one]
        if (one is None) == (found is None):
            self.refuse("value", "a send has either `value` or `values`")
        if found is None:
            self.refuse("value", f"{one!r:.80}: {_VALUE}")
        if type(found) is not list or not found:
            self.refuse("values", "not a list with something in it")
        for one in found:
            if type(one) is not str and type(one) is not int:
                self.refuse("values", f"{one!r:.80}: {_VALUE}")
        return found


_VALUE = "a value is a text or a whole number"


def _wrong(expected: str, line: dict[str, Any], field: str) -> str:
    if field not in line:
        return f"it is missing: {expected}"
    return f"{line[field]!r:.80} is not {expected}"


_PARTITION_DIGITS_MAX = len(str(PARTITION_MAX))
_COLUMNS = len(Operations.names())
_KIND, _BEGIN, _FILE = map(Operations.names().index, ("kind", "begin", "file"))
_KIND_NUMBERS = {name: number for number, name in enumerate(KINDS)}
_OUTCOME_NUMBERS = {name: number for number, name in enumerate(OUTCOMES)}
_ISOLATION_NUMBERS = {name: number for number, name in enumerate(ISOLATION_LEVELS)}
# How an object of JSON may begin: no line of a history has a control character within.
_BEGINNING = re.compile(r'\{\s*("[^\x00-\x08\x0b\x0c\x0e-\x1f]*)?')

Table = TypeVar("Table", bound=Columns)


def read_history(paths: Iterable[str | PathLike[str]]) -> History:
    """Return the history in these files, one file for each process that recorded.

    Raises HistoryError for a line that is not of the format, or a file that is given twice, and
    OSError for a file that cannot be read. The beginning of a last line, which a killed process
    left, does not count.
    """
    reader = _Reader()
    known: set[str] = set()
    for path in paths:
        file = realpath(fspath(path))
        if file in known:
            # Its operations must not count twice.
            raise HistoryError(fspath(path), 1, "", "this file is given twice")
        known.add(file)
        try:
            reader.read(fspath(path))
        except OSError as error:
            if error.filename is None:  # A read that fails, unlike an open, does not say of what.
                error.filename = fspath(path)
            raise
    return reader.history()


class _Reader:
    """Gathers the rows of all tables."""

    def __init__(self) -> None:
        self._ops, self._sends, self._reads = array("q"), array("q"), array("q")
        self._next, self._seeks, self._ends = array("q"), array("q"), array("q")
        self._offset_writes, self._offset_reads = array("q"), array("q")
        self._row = 0
        self._replaced: list[int] = []
        self._numbered: dict[tuple[int, int], int] = {}
        # Names in the order of their numbers.
        self._files: list[str] = []
        self._clients: dict[str, int] = {}
        self._transactions: dict[str, int] = {}
        self._transactional_ids: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._topics: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        self._partition_topics: list[int] = []
        self._values: list[str | int] = []
        self._value_numbers: list[dict[str | int, int]] = []  # By topic.
        self._place = Place("")
        self._parts: dict[str, Callable[[dict[str, Any], int], None]] = {
            "send": self._take_send,
            "poll": self._take_poll,
            "seek": partial(self._take_positions, "positions", self._seeks, optional=True),
            "init": self._take_init,
            "commit": self._take_end,
            "abort": self._take_end,
            "offsets": partial(self._take_positions, "offsets", self._offset_writes, tried=True),
            "committed": partial(
                self._take_positions, "offsets", self._offset_reads, optional=True
            ),
            "ends": partial(self._take_positions, "offsets", self._ends),
        }

    def read(self, path: str) -> None:
        """Read all lines of a file."""
        self._place = place = Place(path)
        self._files.append(path)
        decode = json.JSONDecoder(object_pairs_hook=object_of).raw_decode
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            for number, text in enumerate(lines, 1):
                place.line_number = number
                if text[0].isspace():
                    text = text.lstrip()
                    if not text:
                        continue
                try:
                    line, end = decode(text)
                except (ValueError, RecursionError) as error:
                    if _breaks_off(text, error):
                        break  # The process was killed while it wrote.
                    if isinstance(error, RepeatedNameError):
                        place.refuse(error.name, "it is there twice in one object")
                    # JSON knows no limit to a number's digits; Python does.
                    is_json = not isinstance(error, (JSONDecodeError, RecursionError))
                    place.refuse("", "a number is too long" if is_json else f"not JSON: {error}")
                if type(line) is not dict or (end + 1 < len(text) and text[end:].strip()):
                    place.refuse("", "not one JSON object")
                if not text.isascii() or "\\u" in text:
                    place.check_text(line, text)
                self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        place, get = self._place, line.get
        kind = get("kind")
        fields = FIELDS.get(kind) if type(kind) is str else None
        if kind is None or fields is None:
            place.refuse("kind", f"{kind!r:.80} is not one of {', '.join(KINDS)}")
        if not line.keys() <= fields:
            place.check_names(line, kind, fields)
        outcome = _known(_OUTCOME_NUMBERS, get("outcome"))
        if outcome is None:
            place.refuse("outcome", f"{get('outcome')!r:.80}: not one of {', '.join(OUTCOMES)}")
        client = _known(self._clients, get("client"))
        if client is None:
            client = _number_of(self._clients, place.text(line, "client"))
        begin, end = get("begin_ns"), get("end_ns")
        if outcome == UNKNOWN or type(begin) is not int or type(end) is not int or begin > end:
            begin, end = self._times(line, outcome)
        elif begin < 0 or end > TIME_MAX:
            self._times(line, outcome)
        transaction = transactional_id = group = isolation = producer_id = epoch = NONE
        if get("transaction") is not None:
            transaction = _number_of(self._transactions, place.text(line, "transaction"))
        if get("transactional_id") is not None:
            name = place.text(line, "transactional_id")
            transactional_id = _number_of(self._transactional_ids, name)
        if "group" in fields:
            group = _number_of(self._groups, place.text(line, "group"))
        if "producer_id" in line or "producer_epoch" in line:
            producer_id, epoch = place.producer(line)
        if "isolation" in fields:
            level = get("isolation")
            level = ISOLATION_LEVELS[0] if level is None else level
            found = _known(_ISOLATION_NUMBERS, level)
            if found is None:
                place.refuse("isolation", f"not one of {', '.join(ISOLATION_LEVELS)}")
            isolation = found
        kind_number = _KIND_NUMBERS[kind]
        if get("op") is not None:
            self._replace(client, place.number(line, "op", NEVER_NS), kind_number, begin)
        self._parts[kind](line, outcome)
        identity = (transaction, transactional_id, producer_id, epoch, group, isolation)
        place_in_files = (len(self._files) - 1, place.line_number)
        self._ops.extend((client, kind_number, outcome, begin, end, *identity, *place_in_files))
        self._row += 1

    def _times(self, line: dict[str, Any], outcome: int) -> tuple[int, int]:
        begin = self._place.moment(line, "begin_ns")
        if outcome == UNKNOWN:
            if line.get("end_ns") is not None:
                self._place.moment(line, "end_ns")
            return begin, NEVER_NS
        end = self._place.moment(line, "end_ns")
        if end < begin:
            self._place.refuse("end_ns", f"{end} is before begin_ns, {begin}")
        return begin, end

    def _replace(self, client: int, number: int, kind: int, begin: int) -> None:
        """Forget an earlier line of the same operation."""
        before = self._numbered.get((client, number))
        if before is not None:
            earlier = self._ops[before * _COLUMNS : (before + 1) * _COLUMNS]
            if earlier[_KIND] != kind:
                self._place.refuse("op", f"operation {number} of this client is of another kind")
            if (earlier[_BEGIN], earlier[_FILE]) != (begin, len(self._files) - 1):
                self._place.refuse(
                    "op",
                    f"operation {number} of this client began at another time, or is in another "
                    "file: two processes recorded by the name of one client",
                )
            self._replaced.append(before)
        self._numbered[client, number] = self._row

    # Fields of each kind.

    def _take_send(self, line: dict[str, Any], outcome: int) -> None:
        place, row = self._place, self._row
        topic_name = place.text(line, "topic")
        topic = self._topics.get(topic_name)
        if topic is None:
            topic = self._add_topic(topic_name)
        partition = offset = NONE
        if line.get("partition") is not None:
            number = place.number(line, "partition", PARTITION_MAX)
            partition = self._partition(f"{topic_name}-{number}", "partition")
        if line.get("offset") is not None:
            offset = place.number(line, "offset", OFFSET_MAX)
            if partition == NONE or outcome != OK:
                place.refuse("offset", "only a send that is ok, to a partition, has an offset")
        known, values = self._value_numbers[topic], self._values
        given = place.values(line)
        if offset != NONE:
            place.offset(offset + len(given) - 1, "offset")
        for value in given:
            identity = known.get(value)
            if identity is None:
                identity = known[value] = len(values)
                values.append(value)
            self._sends.extend((row, topic, partition, offset, identity))
            if offset != NONE:
                offset += 1

    def _take_poll(self, line: dict[str, Any], outcome: int) -> None:
        if outcome != OK:
            return
        place, row, reads, values = self._place, self._row, self._reads, self._values
        for name, records in place.mapping(line, "records").items():
            partition = self._partitions.get(name)
            if partition is None:
                partition = self._partition(name, "records")
            known = self._value_numbers[self._partition_topics[partition]]
            if type(records) is not list:
                place.refuse("records", f"{name}: not a list of [offset, value]")
            for record in records:
                if type(record) is not list or len(record) != 2:
                    place.refuse("records", f"{name}: {record!r:.80} is not [offset, value]")
                offset, value = record
                if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                    place.offset(offset, "records")
                if type(value) is not str and type(value) is not int:
                    place.refuse("records", f"{value!r:.80}: a value is a text or a whole number")
                identity = known.get(value)
                if identity is None:
                    identity = known[value] = len(values)
                    values.append(value)
                reads.extend((row, partition, offset, identity))
        if line.get("next") is not None:
            self._take_positions("next", self._next, line, outcome)

    def _take_init(self, line: dict[str, Any], outcome: int) -> None:
        if line.get("transactional_id") is None and line.get("producer_id") is None:
            self._place.refuse("transactional_id", "an init names it, or a producer id and epoch")

    def _take_end(self, line: dict[str, Any], outcome: int) -> None:
        self._place.text(line, "transaction")

    def _take_positions(
        self,
        field: str,
        table: "array[int]",
        line: dict[str, Any],
        outcome: int,
        *,
        optional: bool = False,
        tried: bool = False,
    ) -> None:
        """Read the offsets of an operation that is ok, or, with `tried`, of any.

        With `optional`, a partition may have none.
        """
        if outcome != OK and not tried:
            return
        for name, offset in self._place.mapping(line, field).items():
            partition = self._partition(name, field)
            if offset is not None or not optional:
                self._place.offset(offset, field)
            table.extend((self._row, partition, NONE if offset is None else offset))

    # Names.

    def _add_topic(self, name: str) -> int:
        self._value_numbers.append({})
        return _number_of(self._topics, name)

    def _partition(self, name: str, field: str) -> int:
        """Return the number of a partition by its name, as in `orders-0`."""
        found = self._partitions.get(name)
        if found is not None:
            return found
        topic_name, dash, digits = name.rpartition("-")
        few = digits.isdecimal() and len(digits) <= _PARTITION_DIGITS_MAX
        if not topic_name or not dash or not few or str(int(digits)) != digits:
            self._place.refuse(
                field, f"{name!r:.80} is not a topic and a partition, as in orders-0"
            )
        if len(self._partitions) == PARTITIONS_MAX:
            self._place.refuse(field, f"more than {PARTITIONS_MAX} partitions")
        topic = self._topics.get(topic_name)
        if topic is None:
            topic = self._add_topic(topic_name)
        self._partition_topics.append(topic)
        return _number_of(self._partitions, name)

    # The end.

    def history(self) -> History:
        """Return the history of all files read."""
        ops = _table(Operations, self._ops)
        alive = np.ones(len(ops), dtype=bool)
        alive[self._replaced] = False
        numbers = np.cumsum(alive) - 1

        def counted(kind: type[Table], rows: "array[int]") -> Table:
            table: Table = _alive(_table(kind, rows), alive, numbers)
            return table

        return History(
            names=Names(
                files=self._files,
                clients=list(self._clients),
                transactions=list(self._transactions),
                transactional_ids=list(self._transactional_ids),
                groups=list(self._groups),
                topics=list(self._topics),
                partitions=list(self._partitions),
                partition_topics=self._partition_topics,
                values=self._values,
            ),
            ops=ops.where(alive),
            sends=counted(Sends, self._sends),
            reads=counted(Reads, self._reads),
            next=counted(Positions, self._next),
            seeks=counted(Positions, self._seeks),
            offset_writes=counted(Positions, self._offset_writes),
            offset_reads=counted(Positions, self._offset_reads),
            ends=counted(Positions, self._ends),
        )


def _breaks_off(text: str, error: Exception) -> bool:
    """True if a line that is not JSON is the beginning of an object at the end of its file."""
    cut = isinstance(error, JSONDecodeError) and not text.endswith("\n")
    return cut and _BEGINNING.fullmatch(text) is not None


def _number_of(numbers: dict[str, int], name: str) -> int:
    """Return the number of a name, the next one if the name is new."""
    return numbers.setdefault(name, len(numbers))


def _known(numbers: dict[str, int], name: object) -> int | None:
    """Return the number of a known name; None for anything else."""
    return numbers.get(name) if type(name) is str else None


def _table(kind: type[Table], rows: "array[int]") -> Table:
    names = kind.names()
    given = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return kind(**{name: np.ascontiguousarray(given[:, at]) for at, name in enumerate(names)})


def _alive(table: Any, alive: Flags, numbers: Numbers) -> Any:
    """Return the rows without those of replaced operations, whose numbers are left out."""
    kept = table.where(alive[table.op])
    kept.op = numbers[kept.op]
    return kept
