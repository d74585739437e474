from typing import final

import numpy as np
import numpy.typing as npt

@final
class ColumnSet:
    def __len__(self) -> int: ...
    @property
    def timestamps(self) -> npt.NDArray[np.int64] | None: ...
    def check_sizes(self, batch_bytes_max: int) -> None: ...
    def by_partition(
        self, partition_count: int, first_partition: int, batch_bytes_max: int
    ) -> list[tuple[int, ColumnSet]]: ...

def open_columns(
    values: object, keys: object, timestamps: object, headers: object, timestamp_ms: int
) -> ColumnSet: ...
