"""Prefetching of bytes before a gather.

A gather waits for each cache line, because no prefetcher predicts its accesses. One sequential pass
over the same bytes loads them into the processor's cache at memory speed. This is faster if a
gather touches most of the lines, that is, if records are short.
"""

import numpy as np
from numpy.typing import NDArray

_RECORD_BYTES_MAX = 512
_WORD_BYTES = 8


def touch_pages(data: NDArray[np.uint8], records: int) -> None:
    """Load the bytes of records into the processor's cache if the records are short enough; they
    must fit into it.

    Args:
        data: the bytes, uint8[n], contiguous.
        records: number of records in them.
    """
    if 0 < len(data) <= records * _RECORD_BYTES_MAX:
        # The result is not used; `max` is the cheapest operation that reads every word.
        data[: len(data) // _WORD_BYTES * _WORD_BYTES].view(np.uint64).max(initial=0)
