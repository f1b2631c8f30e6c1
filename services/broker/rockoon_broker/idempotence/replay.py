"""Extracts runs of messages with sequence numbers from the log."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rockoon_broker.idempotence.ledger import Run
from rockoon_broker.store.log.batch import SequenceKey
from rockoon_broker.store.log.reading import LogChunk
from rockoon_format.names import is_dlq_topic, is_retry_topic, is_system_topic
from rockoon_format.record import (
    AT_STORE_TIMESTAMP_V4,
    HOST_V4_BYTES,
    HOST_V6_EXTRA_BYTES,
    SYS_FLAG_BORN_HOST_V6,
)
from rockoon_format.sequences import find_sequences

_TIMESTAMP_BYTES = 8


def takes_sequences(topic: str) -> bool:
    """Return whether an idempotent producer may send to a topic.

    In all other topics the broker stores copies of messages, which have the originals' numbers.
    """
    return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic))


class FoundRun(NamedTuple):
    """A run of messages in a part of the log."""

    key: SequenceKey
    run: Run
    record: int
    """Index of its first record in the part."""
    begins_batch: bool
    """Whether that record is the first of its batch."""


def runs_in(chunk: LogChunk) -> Iterator[FoundRun]:
    """Yield the runs of a part of the log, in log order.

    A batch that crosses two parts yields two runs. Damaged records are skipped, because their
    numbers could be those of another producer.
    """
    records = chunk.records
    found = find_sequences(chunk.frames, records.offsets, records.sizes)
    if not chunk.checked:
        found = found.of(np.isin(found.indices, chunk.intact(found.indices)))
    if not len(found.indices):
        return
    indices = found.indices
    # A run begins wherever a column of `same` changes or one of `rising` does not increase by one.
    same: tuple[NDArray[Any], ...] = (
        found.producer_ids,
        found.first_sequences,
        records.topic_numbers[indices],
        records.queue_ids[indices],
    )
    rising = (indices, found.batch_indices, records.queue_offsets[indices])
    begins = np.ones(len(indices), np.bool_)
    begins[1:] = False
    for column in same:
        begins[1:] |= column[1:] != column[:-1]
    for column in rising:
        begins[1:] |= column[1:] != column[:-1] + 1
    firsts = np.flatnonzero(begins)
    counts = np.diff(firsts, append=len(indices))
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        index = int(indices[first])
        topic = records.topics[int(records.topic_numbers[index])].decode()
        if not takes_sequences(topic):
            continue
        position = int(records.offsets[index])
        born_v6 = int(records.sys_flags[index]) & SYS_FLAG_BORN_HOST_V6
        host_at = position + AT_STORE_TIMESTAMP_V4 + _TIMESTAMP_BYTES
        host_at += HOST_V6_EXTRA_BYTES if born_v6 else 0
        yield FoundRun(
            SequenceKey(int(found.producer_ids[first]), topic, int(records.queue_ids[index])),
            Run(
                first_sequence=int(found.first_sequences[first] + found.batch_indices[first]),
                messages=count,
                first_queue_offset=int(records.queue_offsets[index]),
                first_physical_offset=chunk.start + position,
                store_timestamp_ms=int(records.store_timestamps_ms[index]),
                store_host=chunk.frames[host_at : host_at + HOST_V4_BYTES],
            ),
            index,
            begins_batch=int(found.batch_indices[first]) == 0,
        )
