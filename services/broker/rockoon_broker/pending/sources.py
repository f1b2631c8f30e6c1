"""Source references: how a record names the record that it was made from.

A record has a field for the physical offset of the half message that it commits (RocketMQ's
PREPAREDTRANSACTIONOFFSET, with the commit bit of the system flags). Records made from
others for other reasons (delivery or cancellation of a delayed message) store
`~offset` in this field. It is negative, so that offset 0 can be expressed, and so that the record
is not mistaken for a committed transaction. All other records have 0.

So the log alone determines what is completed, after any crash. Producers may not set the field:
`check_batch` refuses it.
"""

import numpy as np
from numpy.typing import NDArray

from rockoon_format.frames import sliding
from rockoon_format.record import (
    AT_PREPARED_OFFSET_V4,
    HOST_V6_EXTRA_BYTES,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_TRANSACTION,
    TRANSACTION_COMMIT,
)
from rockoon_format.scan import Scan


def named_source(source: int) -> int:
    """Return the field's value in a record made from the one at a physical offset."""
    return ~source


def sources_of(frames: bytes, records: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which records of a part of the log were made from others.

    Args:
        frames: the records back to back.
        records: their columns; offsets are positions in `frames`.

    Returns:
        Their indices, and the physical offsets of their sources; int64[m] both.
    """
    if records.count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    flags = records.sys_flags
    extra = ((flags & SYS_FLAG_BORN_HOST_V6 != 0) * HOST_V6_EXTRA_BYTES) + (
        (flags & SYS_FLAG_STORE_HOST_V6 != 0) * HOST_V6_EXTRA_BYTES
    )
    at = records.offsets + AT_PREPARED_OFFSET_V4 + extra
    prepared: NDArray[np.int64] = sliding(frames, ">i8")[at].astype(np.int64)
    commits = flags & SYS_FLAG_TRANSACTION == TRANSACTION_COMMIT
    indices = np.flatnonzero((prepared < 0) | commits)
    named = prepared[indices]
    return indices, np.where(named < 0, ~named, named)
