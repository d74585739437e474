from typing import final

@final
class ArrowStream:
    @property
    def name(self) -> str: ...
