"""Java's String.hashCode over UTF-16 code units, for tags codes and the key index.

A tags code is the signed 32-bit hash of the whole TAGS value, sign-extended to 64 bits
(MessageExtBrokerInner#tagsString2tagsCode). An index hash is the absolute value; the smallest
number, which has no positive counterpart, becomes zero (IndexFile#indexKeyHashMethod).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rockoon_format.properties import decode_text

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1

TAG_HASHES_MAX = 4096
"""Maximum number of tags in a filter: a broker compares each entry with all tags of the filter."""

_UINT32_MASK = 0xFFFFFFFF
# Texts are hashed together with texts of similar length; longer texts one by one.
_WIDTHS = (8, 16, 32, 64, 128, 256)
_NOT_ASCII = np.uint64(0x8080808080808080)
_LOW_HALF = np.uint64(_UINT32_MASK)


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
    """Hash many UTF-8 texts of one array.

    Args:
        data: bytes that contain all texts.
        starts: int64[n], position of each text's first byte.
        lengths: int64[n], length of each text in bytes; every text is within `data`.

    Returns:
        int64[n] of signed 32-bit hashes, equal to `java_hash_code` of each decoded text.
    """
    codes, exact = _ascii_codes(data, starts, lengths)
    result = codes.view(np.int32).astype(np.int64)
    for index in exact.tolist():
        result[index] = java_hash_code(_text(data, starts, lengths, index))
    return result


def joined_key_hashes(
    fronts: Sequence[str],
    which: NDArray[np.int64],
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return `index_key_hash` of many texts, each with one of a few prefixes.

    Args:
        fronts: the prefixes.
        which: int64[n], index of each text's prefix.
        data, starts, lengths: the n texts, as for `java_hash_codes`.
    """
    codes, exact = _ascii_codes(data, starts, lengths)
    # Hash of prefix + text = hash(prefix) * 31 ** len(text) + hash(text).
    front_codes = np.array([java_hash_code(front) & _UINT32_MASK for front in fronts], np.uint32)
    codes += front_codes[which] * _powers_of_31(int(lengths.max(initial=0)))[lengths]
    hashes = np.abs(codes.view(np.int32).astype(np.int64))
    hashes &= INT32_MAX
    for index in exact.tolist():
        text = _text(data, starts, lengths, index)
        hashes[index] = index_key_hash(fronts[int(which[index])] + text)
    return hashes


def _ascii_codes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Hashes of the ASCII texts, uint32[n], and the indices of all texts that were not hashed."""
    if len(starts) == 0:
        return np.zeros(0, np.uint32), np.zeros(0, np.int64)
    lowest, highest = np.searchsorted(_WIDTHS, (lengths.min(), lengths.max())).tolist()
    if lowest == highest < len(_WIDTHS):
        return _codes_of_width(data, starts, lengths, _WIDTHS[lowest])
    classes = np.searchsorted(_WIDTHS, lengths)
    codes = np.zeros(len(starts), np.uint32)
    left_out = [np.flatnonzero(classes == len(_WIDTHS))]
    for number in range(lowest, min(highest + 1, len(_WIDTHS))):
        rows = np.flatnonzero(classes == number)
        if len(rows):
            found, odd = _codes_of_width(data, starts[rows], lengths[rows], _WIDTHS[number])
            codes[rows] = found
            left_out.append(rows[odd])
    return codes, np.concatenate(left_out)


def _codes_of_width(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """`_ascii_codes` of texts of at most `width` bytes, a power of two from 8.

    A text is copied together with the bytes before it, up to the width; the bytes before it are
    then set to zero, which does not change the hash. Then neighbouring digits in base 31 are
    combined to one digit in base 31 squared, until eight digits are one.
    """
    if len(data) < width:
        return np.zeros(len(starts), np.uint32), np.arange(len(starts))
    fronts = starts + lengths - width
    odd = fronts < 0
    rows = _windows(data, np.maximum(fronts, 0), width)
    if int(lengths.min()) != width:
        # A window of `width` zeros and `width` ones: its part at `length` has `length` ones.
        mask = np.repeat(np.array([0, 0xFF], np.uint8), width)
        rows &= _windows(mask, lengths, width)
    if (rows & _NOT_ASCII).any():
        odd |= (rows & _NOT_ASCII).any(axis=1)

    # With ASCII, only the last step exceeds its type; it keeps 32 bits, like Java's int. A byte of
    # 128 or more would exceed its type earlier; its text is in `odd`.
    pairs = rows.view("<u2")
    pairs = (pairs & 0xFF) * np.uint16(31) + (pairs >> 8)
    fours = pairs.view("<u4")
    fours = (fours & 0xFFFF) * np.uint32(31**2) + (fours >> 16)
    eights = fours.view("<u8")
    eights = (eights & _LOW_HALF) * np.uint64(31**4) + (eights >> np.uint64(32))
    codes = eights[:, 0].astype(np.uint32)
    for column in range(1, width // 8):
        codes *= np.uint32(31**8 & _UINT32_MASK)
        codes += eights[:, column].astype(np.uint32)
    return codes, np.flatnonzero(odd)


def _windows(data: NDArray[np.uint8], starts: NDArray[np.int64], width: int) -> NDArray[np.uint64]:
    """Copies of `width` bytes from each position, as words, "<u8"[n, width / 8]."""
    pieces = np.ndarray((len(data) - width + 1,), f"V{width}", buffer=data, strides=(1,))
    return pieces[starts].view("<u8").reshape(len(starts), width // 8)


def _powers_of_31(highest: int) -> NDArray[np.uint32]:
    """31 to the power of 0, 1, ... `highest`, modulo 2**32."""
    factors = np.full(highest + 1, 31, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


def _text(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], index: int
) -> str:
    start = int(starts[index])
    return decode_text(data[start : start + int(lengths[index])].tobytes())
