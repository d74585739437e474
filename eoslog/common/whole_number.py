"""Numbers that callers hand in: any whole number will do, numpy's too, but no truth value."""

import operator


def whole_number(value: object, what: str) -> int:
    """The value as an int. Raises TypeError, which says what the number was to be."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"{what} is a whole number, not {type(value).__name__}")
