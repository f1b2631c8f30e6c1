"""`config/producerSequences`: snapshot of the sequences of idempotent producers.

    +----------+---------+---------+-----------------+-------+----------+-----+-------+
    | ROCKSEQ2 | lineage | log end | forgotten until | count | sequence | ... | CRC32 |
    +----------+---------+---------+-----------------+-------+----------+-----+-------+
         8          16         8             8            4                        4

    sequence: producer id 8, queue 4, runs 1, length of the topic 2, topic, runs of 44 bytes:
    run:      first sequence 8, messages 4, queue offset 8, physical offset 8, store time 8, host 8

All numbers are big-endian. The lineage is the store's (checkpoint_files.py). Records of the log
after `log end` are not included. The CRC covers everything before it.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from rockoon_broker.idempotence.ledger import Run, Runs
from rockoon_broker.store.log.batch import SequenceKey

FILE = "producerSequences"

_MAGIC = b"ROCKSEQ2"
_HEAD = struct.Struct(">8s16sqqI")
_SEQUENCE = struct.Struct(">QiBH")
_RUN = struct.Struct(">qiqqq8s")
_CRC = struct.Struct(">I")
assert (_HEAD.size, _SEQUENCE.size, _RUN.size) == (44, 15, 44)


class SnapshotError(ValueError):
    """The bytes are not a valid snapshot; the message has the reason."""


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """State of a SequenceLedger."""

    lineage: bytes
    """Lineage of the store, 16 bytes."""
    log_end: int
    """Physical offset up to which all records are included."""
    discarded_until_ms: int
    sequences: Mapping[SequenceKey, Runs]
    """Least recently used first."""

    def encode(self) -> bytes:
        numbers = (self.log_end, self.discarded_until_ms, len(self.sequences))
        parts = [_HEAD.pack(_MAGIC, self.lineage, *numbers)]
        for key, runs in self.sequences.items():
            topic = key.topic.encode()
            parts += (_SEQUENCE.pack(key.producer_id, key.queue_id, len(runs), len(topic)), topic)
            parts += (_RUN.pack(*run) for run in runs)
        content = b"".join(parts)
        return content + _CRC.pack(zlib.crc32(content))


def decode_snapshot(content: bytes) -> SequenceSnapshot:
    """Decode the result of `SequenceSnapshot.encode`.

    Raises:
        SnapshotError: it is truncated, damaged, or of another version.
    """
    if len(content) < _HEAD.size + _CRC.size or not content.startswith(_MAGIC):
        raise SnapshotError(f"its {len(content)} bytes do not begin with {_MAGIC.decode()}")
    at = len(content) - _CRC.size
    if _CRC.unpack_from(content, at)[0] != zlib.crc32(content[:at]):
        raise SnapshotError("its CRC does not match")
    _, lineage, log_end, discarded_until_ms, count = _HEAD.unpack_from(content)
    at = _HEAD.size
    sequences: dict[SequenceKey, Runs] = {}
    for _ in range(count):
        producer_id, queue_id, run_count, topic_bytes = _SEQUENCE.unpack_from(content, at)
        at += _SEQUENCE.size
        topic = content[at : at + topic_bytes].decode()
        at += topic_bytes
        end = at + run_count * _RUN.size
        runs = tuple(map(Run._make, _RUN.iter_unpack(content[at:end])))
        sequences[SequenceKey(producer_id, topic, queue_id)] = runs
        at = end
    return SequenceSnapshot(lineage, log_end, discarded_until_ms, sequences)
