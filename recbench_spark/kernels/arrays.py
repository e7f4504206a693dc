"""The types of arrays, by what they hold, and of streams of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

Batches = Iterator[pa.RecordBatch]
"""What `mapInArrow` hands to a task, and wants back."""
