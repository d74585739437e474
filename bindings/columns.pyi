from typing import final

import numpy as np
import numpy.typing as npt

@final
class ColumnHolder: ...

def timestamp_column(timestamps: object) -> npt.NDArray[np.int64]: ...
