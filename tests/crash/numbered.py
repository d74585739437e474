"""Which of many states a failure was in."""

from __future__ import annotations


class Numbered:
    """A context: an error that passes through it says which state it was."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            error.add_note(self._text)
