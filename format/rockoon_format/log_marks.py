"""Records of a log about itself, in a topic of its own: where its epochs began.

They are ordinary records of queue 0 of LOG_TOPIC with the tag EPOCH, which RocketMQ keeps as it
keeps any topic. Only a log that has, or had, several copies holds some: one whenever an epoch
begins, and one first in each CommitLog file from then on, so that retention never takes the last.

The body is JSON in UTF-8:

    epoch     the one in which the record was written
    leader    id of the replica that leads it
    begun     [[epoch, physical offset], ...] of the newest epochs that began before the record, in
              their order. If its own epoch is not the last of them, it begins with this record.
"""

import json
from typing import NamedTuple

from rockoon_format.properties import PROPERTY_TAGS, encode

LOG_TOPIC = "rmq_sys_rockoon_log"
LOG_QUEUE = 0
EPOCH_TAG = "EPOCH"
EPOCH_PROPERTIES = encode({PROPERTY_TAGS: EPOCH_TAG})
# So many epochs, the newest ones, or short reigns would make records grow without end.
BEGUN_MAX = 64


class EpochBegin(NamedTuple):
    """An epoch, and the physical offset of the record that it began with."""

    epoch: int
    first: int


class EpochMark(NamedTuple):
    """What a record tagged EPOCH says."""

    epoch: int
    leader: str
    begun: tuple[EpochBegin, ...]

    def begun_with(self, physical_offset: int) -> tuple[EpochBegin, ...]:
        """Every epoch that is known, the record's own included.

        Args:
            physical_offset: of the record.
        """
        if self.begun and self.begun[-1].epoch == self.epoch:
            return self.begun
        return (*self.begun, EpochBegin(self.epoch, physical_offset))


def encode_epoch_mark(mark: EpochMark) -> bytes:
    """The body; of what has begun the newest BEGUN_MAX."""
    content = {"epoch": mark.epoch, "leader": mark.leader, "begun": mark.begun[-BEGUN_MAX:]}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_epoch_mark(body: bytes) -> EpochMark:
    """Raises ValueError for a body that says something else than it may."""
    try:
        content = json.loads(body)
        mark = EpochMark(
            int(content["epoch"]),
            str(content["leader"]),
            tuple(EpochBegin(int(epoch), int(first)) for epoch, first in content["begun"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no epoch's mark: {error}") from error
    epochs = [each.epoch for each in mark.begun]
    firsts = [each.first for each in mark.begun]
    if mark.epoch < 1 or epochs != sorted({*epochs}) or firsts != sorted({*firsts}):
        raise ValueError(f"this is no epoch's mark: epoch {mark.epoch}, {mark.begun}")
    if epochs and epochs[-1] > mark.epoch:
        raise ValueError(f"epoch {epochs[-1]} has begun before epoch {mark.epoch}")
    return mark
