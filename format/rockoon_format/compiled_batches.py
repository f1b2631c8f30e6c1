"""Batch check by the compiled kernel, with the result as a `BatchLayout`."""

import numpy as np
from numpy.typing import NDArray

from rockoon_format import kernel
from rockoon_format.batch_layout import BatchLayout
from rockoon_format.batch_rules import BatchRules

_COLUMNS = 5


def check_compiled(
    frames: bytes, sizes: NDArray[np.int64], rules: BatchRules
) -> BatchLayout | None:
    """Check a batch; None in a doubtful case, so that the column check names the reason.

    Args:
        frames: see `check_batch`.
        sizes: size of each record, int64[n].
        rules: requirements; the topic is not a topic of delayed messages.
    """
    assert kernel.native is not None
    found = kernel.native.check_batch(bytes(frames), sizes.tobytes(), *rules[:7])
    if found is None:
        return None
    count = len(sizes)
    columns = np.frombuffer(found, np.int64, _COLUMNS * count).reshape(_COLUMNS, count)
    return BatchLayout(
        starts=columns[0],
        lengths=columns[1],
        tag_codes=columns[2],
        store_positions=columns[3],
        properties_lengths=columns[4],
        has_room=np.frombuffer(found, np.bool_, count, _COLUMNS * count * columns.itemsize),
        total_bytes=len(frames),
    )
