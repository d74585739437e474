from typing import final

@final
class OwnedArray: ...

@final
class OwnedSchema: ...
