"""Java's String.hashCode over UTF-16 code units, for tags codes and the key index.

A tags code is the signed 32-bit hash of the whole TAGS value, sign-extended to 64 bits
(MessageExtBrokerInner#tagsString2tagsCode); an index hash is the absolute value, with the one
number that has none mapped to zero (IndexFile#indexKeyHashMethod).
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rockoon_format.properties import decode_text

INT32_MIN = -(2**31)

_UINT32_MASK = 0xFFFFFFFF
# Above this many bytes a loop over columns costs more than a loop over the few long rows.
_VECTORISED_BYTES_MAX = 64


def java_hash_code(text: str) -> int:
    """Return `String.hashCode()` of `text` as a signed 32-bit number."""
    units = (
        text.encode("ascii")
        if text.isascii()
        else memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    )
    code = 0
    for unit in units:
        code = (31 * code + unit) & _UINT32_MASK
    return code - 2**32 if code >= 2**31 else code


@lru_cache(maxsize=4096)
def tags_code(tags: str) -> int:
    """Return the ConsumeQueue's tagsCode of a whole TAGS value; 0 for the empty string."""
    return java_hash_code(tags)


def index_key_hash(key: str) -> int:
    """Return the key index's hash of `topic#key`, never negative."""
    code = java_hash_code(key)
    return 0 if code == INT32_MIN else abs(code)


def java_hash_codes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Hash many UTF-8 texts that lie in one array.

    Args:
        data: bytes that hold all texts.
        starts: int64[n], position of each text's first byte.
        lengths: int64[n], its length in bytes; every text lies within `data`.

    Returns:
        int64[n] of signed 32-bit hashes, what `java_hash_code` says of each decoded text.
    """
    count = len(starts)
    if count == 0:
        return np.zeros(0, np.int64)
    exact = lengths > _VECTORISED_BYTES_MAX
    has_long = bool(exact.any())
    hashed_lengths = np.where(exact, 0, lengths) if has_long else lengths
    shortest, longest = int(hashed_lengths.min()), int(hashed_lengths.max())
    codes = np.zeros(count, np.uint32)
    any_bits = np.zeros(count, np.uint8)
    last = len(data) - 1
    for column in range(longest):
        if column < shortest:
            units = data[starts + column]
            codes *= np.uint32(31)
            codes += units
            any_bits |= units
        else:
            live = hashed_lengths > column
            units = data[np.minimum(starts + column, last)]
            codes = np.where(live, codes * np.uint32(31) + units, codes)
            any_bits |= np.where(live, units, np.uint8(0))
    result = codes.view(np.int32).astype(np.int64)
    exact |= any_bits > 0x7F
    for index in np.flatnonzero(exact).tolist():
        start = int(starts[index])
        text = decode_text(data[start : start + int(lengths[index])].tobytes())
        result[index] = java_hash_code(text)
    return result
