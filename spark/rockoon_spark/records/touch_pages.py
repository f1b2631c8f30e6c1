"""Reading ahead of gathers.

A gather waits for one cache line after the other, each where no prefetcher expects it. One pass
over the same bytes, in order, brings them into the processor's cache at the speed of memory. That
pays where a gather touches most of the lines: where records are short.
"""

import numpy as np
from numpy.typing import NDArray

_RECORD_BYTES_MAX = 512
_WORD_BYTES = 8


def touch_pages(data: NDArray[np.uint8], records: int) -> None:
    """Bring bytes into the cache, if it pays; they have to fit into it.

    Args:
        data: the bytes, uint8[n], one behind the other.
        records: how many lie in them.
    """
    if 0 < len(data) <= records * _RECORD_BYTES_MAX:
        # What comes out is of no use; it is the least that reads every word.
        data[: len(data) // _WORD_BYTES * _WORD_BYTES].view(np.uint64).max(initial=0)
