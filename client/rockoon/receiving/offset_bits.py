"""Bit masks of offsets, for calls to the offset service."""

from collections.abc import Iterable


def offsets_of(first_offset: int, mask: bytes) -> list[int]:
    """Return the offsets whose bits are set, ascending.

    Args:
        first_offset: offset of the least significant bit of the first byte.
        mask: one bit per offset.
    """
    bits = int.from_bytes(mask, "little")
    count = bits.bit_length()
    if bits == (1 << count) - 1:
        return list(range(first_offset, first_offset + count))
    found = []
    while bits:
        lowest = bits & -bits
        found.append(first_offset + lowest.bit_length() - 1)
        bits ^= lowest
    return found


def mask_of(offsets: Iterable[int], first_offset: int) -> bytes:
    """Return the mask of some offsets, which are all `first_offset` or larger."""
    found = sorted(set(offsets))
    if not found:
        return b""
    start, stop = found[0] - first_offset, found[-1] + 1 - first_offset
    size = (stop + 7) // 8
    if stop - start == len(found):
        return ((1 << stop) - (1 << start)).to_bytes(size, "little")
    mask = bytearray(size)
    for offset in found:
        bit = offset - first_offset
        mask[bit >> 3] |= 1 << (bit & 7)
    return bytes(mask)
