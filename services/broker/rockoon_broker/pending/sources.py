"""Source references: how a record names the record it was made from.

A record has a field for the physical offset of the half message that it commits (RocketMQ's
PREPAREDTRANSACTIONOFFSET, with the commit bit of the system flags). Records that are made out of
others for other reasons (a delayed message's delivery, its cancellation) use the same field and
hold `~offset` there: negative, so that offset 0 can be said, and so that nobody takes them for
committed transactions. Ordinary records hold 0.

So the log itself tells what is completed, whatever else a crash has left behind. Producers may not
set the field: `check_batch` refuses it.
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
    """What the field holds of a record made out of the one at a physical offset."""
    return ~source


def sources_of(frames: bytes, records: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which records of a stretch of log were made out of others.

    Args:
        frames: the records back to back.
        records: their columns, offsets being positions in `frames`.

    Returns:
        Their indices in the stretch, and the physical offsets of what they were made out of;
        int64[m] both.
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
