"""The compiled twin of rockoon_format's NumPy code; `rockoon_format.kernel` decides about it."""

from rockoon_kernel._native import (
    INTERFACE,
    append_batches,
    check_batch,
    compare,
    crc32,
    crcs,
    encode_batch,
    encode_messages,
    key_hashes,
    locate,
    scan,
    sequence_ends,
    stamp_batch,
    tags_codes,
    topics,
    walk,
)

__all__ = [
    "INTERFACE",
    "append_batches",
    "check_batch",
    "compare",
    "crc32",
    "crcs",
    "encode_batch",
    "encode_messages",
    "key_hashes",
    "locate",
    "scan",
    "sequence_ends",
    "stamp_batch",
    "tags_codes",
    "topics",
    "walk",
]
