from typing import final

@final
class ColumnHolder: ...
