"""Recall handles: texts that identify a delayed message for its cancellation. Pure.

Source: RecallMessageHandle of RocketMQ: base64url of words, the last one the message's id. Rockoon
adds one word, by which brokers find the message; clients do not interpret the text.
"""

import base64
import binascii
from typing import NamedTuple

from rockoon_gateway.codes import Refusal
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code

_VERSION = "v1"


class Recall(NamedTuple):
    """A pending delayed message."""

    topic: str
    broker: str
    deliver_at_ms: int
    offset_message_id: str
    message_id: str


def recall_handle(recall: Recall) -> str:
    """Return the handle of a delayed message."""
    words = " ".join((_VERSION, *map(str, recall)))
    return base64.urlsafe_b64encode(words.encode()).decode()


def parse_recall_handle(handle: str) -> Recall:
    """Parse a handle; raises Refusal with BAD_REQUEST."""
    try:
        text = base64.urlsafe_b64decode(handle.encode()).decode()
        # A message id may have any characters, including blanks.
        version, topic, broker, deliver_at_ms, offset_id, message_id = text.split(" ", 5)
        if version == _VERSION:
            return Recall(topic, broker, int(deliver_at_ms), offset_id, message_id)
    except (ValueError, binascii.Error):
        pass
    raise Refusal(Code.BAD_REQUEST, "it is not a recall handle")
