"""Offsets as bit masks, as the offset service's calls have them."""

from collections.abc import Iterable, Iterator, Sequence


def offsets_of(first_offset: int, mask: bytes) -> list[int]:
    """Return the offsets whose bits are set, ascending.

    Args:
        first_offset: the one of the least significant bit of the first byte.
        mask: the bits.
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


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Offsets, ascending and each once, as ranges."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:
        yield offsets[0], offsets[-1] + 1
    else:
        yield from ((offset, offset + 1) for offset in offsets)


def mask_of(offsets: Iterable[int], first_offset: int) -> bytes:
    """Return the mask in which the bits of some offsets are set, none below `first_offset`."""
    bits = 0
    for start, stop in _runs(sorted(set(offsets))):
        bits |= (1 << (stop - first_offset)) - (1 << (start - first_offset))
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
