"""What is wrong with a history that cannot be checked, and where."""

from eoslog.errors import EoslogError


class HistoryError(EoslogError, ValueError):
    """A line of a history is not what `docs/checking.md` says; nothing was checked.

    `path` and `line_number` (from 1) say where, `field` names the field ("" for the whole line) and
    `reason` says what is wrong with it.
    """

    path: str
    line_number: int
    field: str
    reason: str

    def __init__(self, path: str, line_number: int, field: str, reason: str) -> None:
        place = f", field {field!r}" if field else ""
        super().__init__(f"{path}, line {line_number}{place}: {reason}")
        self.path = path
        self.line_number = line_number
        self.field = field
        self.reason = reason

    def __reduce__(self) -> tuple[type["HistoryError"], tuple[str, int, str, str]]:
        return type(self), (self.path, self.line_number, self.field, self.reason)
