"""Layout of a checked batch: positions of its records, and values for the indexes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Result of `check_batch`: enough to patch and index the batch without reading its bytes."""

    starts: NDArray[np.int64]
    """Position of each record in the frames, int64[n]."""
    lengths: NDArray[np.int64]
    """Size of each record in bytes, int64[n]."""
    tag_codes: NDArray[np.int64]
    """ConsumeQueue tags code of each record, int64[n]."""
    store_positions: NDArray[np.int64]
    """Position of each record's store timestamp, int64[n]; the store host follows it."""
    properties_lengths: NDArray[np.int64]
    """Bytes of each record's properties, int64[n]."""
    has_room: NDArray[np.bool_]
    """Records with space for a checksum, bool[n]."""
    total_bytes: int
    delays_ms: NDArray[np.int64] | None = None
    """SCHEDULE_TOPIC_XXXX only: delay of each record, int64[n]; 0: the tags code is used."""

    @property
    def count(self) -> int:
        return len(self.starts)
