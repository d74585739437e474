from typing import Any

def plain_columns(
    rows: list[Any],
) -> tuple[list[bytes | None], list[bytes | None] | None, int] | None: ...
