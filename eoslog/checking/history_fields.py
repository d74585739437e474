"""The fields of one line of a history: each is of its type and in its range, or is named."""

import json
import re
from typing import Any, NoReturn

from eoslog.checking.history_error import HistoryError
from eoslog.checking.operation_kinds import FIELDS, NONE, OFFSET_MAX

_INT64_MAX = (1 << 63) - 1
_EPOCH_MAX = (1 << 31) - 1
TIME_MAX = 1 << 61
# What JSON writes for one, and what the file system's way to read UTF-8 makes of a wrong byte.
_SURROGATE = re.compile(r"\\u[dD]|[\ud800-\udfff]")
# These may hold anything: an error may speak of a file whose name is no UTF-8.
_UNREAD = ("error", "note")
_ALL_FIELDS = frozenset[str]().union(*FIELDS.values())


class RepeatedNameError(ValueError):
    """An object of JSON that has a name twice: it does not say which one holds."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, each name once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedNameError(next(name for name in names if names.count(name) > 1))
    return found


class Place:
    """Which line of which file is being read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line_number = 0

    def refuse(self, field: str, reason: str) -> NoReturn:
        """Raise HistoryError for a field of this line."""
        raise HistoryError(self.path, self.line_number, field, reason)

    def check_text(self, line: dict[str, Any], text: str) -> None:
        """Refuse bytes that are not UTF-8 and halves of surrogate pairs: no report could name them.

        `text` is what `line` was made of.
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
        """Refuse what an operation of this kind has not; `null` in a field of another is none."""
        for name in sorted(line.keys() - fields):
            if line[name] is not None or name not in _ALL_FIELDS:
                self.refuse(name, f"a {kind} has no such field")

    def text(self, line: dict[str, Any], field: str) -> str:
        """A text that must be there and not be empty."""
        found = line.get(field)
        if type(found) is not str or not found:
            self.refuse(field, _wrong("a text", line, field))
        return found

    def optional_text(self, line: dict[str, Any], field: str) -> str | None:
        """A text, or None where there is none."""
        return None if line.get(field) is None else self.text(line, field)

    def moment(self, line: dict[str, Any], field: str) -> int:
        """Nanoseconds of a clock that never goes back."""
        found = line.get(field)
        if type(found) is not int or not 0 <= found <= TIME_MAX:
            self.refuse(field, _wrong("nanoseconds, a whole number from 0 on", line, field))
        return found

    def number(self, line: dict[str, Any], field: str, maximum: int) -> int:
        """A whole number from 0 to `maximum`; NONE where there is none."""
        found = line.get(field)
        if found is None:
            return NONE
        if type(found) is not int or not 0 <= found <= maximum:
            self.refuse(field, _wrong(f"a whole number from 0 to {maximum}", line, field))
        return found

    def offset(self, found: object, field: str) -> int:
        """An offset of a partition."""
        if type(found) is not int or not 0 <= found <= OFFSET_MAX:
            self.refuse(field, f"{found!r:.80} is not an offset from 0 to {OFFSET_MAX}")
        return found

    def producer(self, line: dict[str, Any]) -> tuple[int, int]:
        """The producer's id and epoch, both or neither."""
        producer_id = self.number(line, "producer_id", _INT64_MAX)
        epoch = self.number(line, "producer_epoch", _EPOCH_MAX)
        if (producer_id == NONE) != (epoch == NONE):
            missing = "producer_id" if producer_id == NONE else "producer_epoch"
            self.refuse(missing, "an id and an epoch say something together only")
        return producer_id, epoch

    def mapping(self, line: dict[str, Any], field: str) -> dict[str, Any]:
        """An object whose names are partitions."""
        found = line.get(field)
        if type(found) is not dict:
            self.refuse(field, _wrong("an object of partitions", line, field))
        return found

    def values(self, line: dict[str, Any]) -> list[Any]:
        """The records' identities of a send."""
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
