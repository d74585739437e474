from typing import final

@final
class AbortIndexView: ...

@final
class AbortIndexCheck:
    def __init__(self, log_first_offset: int) -> None: ...
