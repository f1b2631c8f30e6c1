"""Java's String.hashCode over UTF-16 code units, for tags codes and the key index.

A tags code is the signed 32-bit hash of the whole TAGS value, sign-extended to 64 bits
(MessageExtBrokerInner#tagsString2tagsCode); an index hash is the absolute value, with the one
number that has none mapped to zero (IndexFile#indexKeyHashMethod).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rockoon_format.properties import decode_text

INT32_MIN = -(2**31)

_UINT32_MASK = 0xFFFFFFFF
# Where fewer rows than this, or only such long ones, are left, they are cheaper one by one.
_LIVE_ROWS_MIN = 8
_COLUMNS_MAX = 256


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


def index_key_hashes(keys: Sequence[str]) -> NDArray[np.int64]:
    """Return `index_key_hash` of many keys, int64[n]."""
    text = "".join(keys)
    if not text.isascii():
        return np.fromiter(map(index_key_hash, keys), np.int64, len(keys))
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    data = np.frombuffer(text.encode("ascii"), np.uint8)
    codes = np.abs(java_hash_codes(data, np.cumsum(lengths) - lengths, lengths))
    codes[codes == -INT32_MIN] = 0
    return codes


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
    exact = np.zeros(count, np.bool_)
    shortest, longest = int(lengths.min()), int(lengths.max())
    codes = np.zeros(count, np.uint32)
    any_bits = np.zeros(count, np.uint8)
    for column in range(longest):
        if column < shortest:
            units = data[starts + column]
            codes *= np.uint32(31)
            codes += units
            any_bits |= units
            continue
        live = np.flatnonzero(lengths > column)
        if len(live) < _LIVE_ROWS_MIN or column >= _COLUMNS_MAX:
            exact[live] = True
            break
        units = data[starts[live] + column]
        codes[live] = codes[live] * np.uint32(31) + units
        any_bits[live] |= units
    result = codes.view(np.int32).astype(np.int64)
    exact |= any_bits > 0x7F
    for index in np.flatnonzero(exact).tolist():
        start = int(starts[index])
        text = decode_text(data[start : start + int(lengths[index])].tobytes())
        result[index] = java_hash_code(text)
    return result
