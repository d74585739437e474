from typing import Any

def verify_segment(
    described: dict[str, Any], expected: int, problems: list[dict[str, Any]]
) -> int: ...
