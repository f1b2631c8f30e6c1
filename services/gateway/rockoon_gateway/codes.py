"""Codes of the protocol: which one says what of Rockoon's error table. Pure."""

from collections.abc import Sequence
from typing import Any

from rockoon_core import errors
from rockoon_core.errors import RockoonError
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Status

# In one shape for all: an assertion of RocketMQ's own test suite looks for the name in the text.
_SEPARATOR = ": "

# What is in no row is INTERNAL_SERVER_ERROR, which clients try again elsewhere.
BY_ERROR: dict[type[RockoonError], Code] = {
    errors.InvalidArgument: Code.BAD_REQUEST,
    errors.InvalidTopicName: Code.ILLEGAL_TOPIC,
    errors.InvalidGroupName: Code.ILLEGAL_CONSUMER_GROUP,
    errors.InvalidExpression: Code.ILLEGAL_FILTER_EXPRESSION,
    errors.InvalidProperty: Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    errors.InvalidDelay: Code.ILLEGAL_DELIVERY_TIME,
    errors.DelayTooLong: Code.ILLEGAL_DELIVERY_TIME,
    errors.InvalidOffset: Code.ILLEGAL_OFFSET,
    errors.OffsetBeyondEnd: Code.ILLEGAL_OFFSET,
    errors.BodyTooLarge: Code.MESSAGE_BODY_TOO_LARGE,
    errors.PropertiesTooLarge: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    errors.KeyMissing: Code.ILLEGAL_MESSAGE_KEY,
    errors.TopicNotFound: Code.TOPIC_NOT_FOUND,
    errors.QueueNotFound: Code.TOPIC_NOT_FOUND,
    errors.GroupNotFound: Code.CONSUMER_GROUP_NOT_FOUND,
    errors.MessageNotFound: Code.NOT_FOUND,
    errors.DelayedSettled: Code.NOT_FOUND,
    errors.TransactionNotFound: Code.INVALID_TRANSACTION_ID,
    errors.TransactionEnded: Code.INVALID_TRANSACTION_ID,
    errors.TopicNotWritable: Code.FORBIDDEN,
    errors.TopicNotReadable: Code.FORBIDDEN,
    errors.NoWritableQueue: Code.FORBIDDEN,
    errors.ConsumeDisabled: Code.FORBIDDEN,
    errors.NotPermitted: Code.UNAUTHORIZED,
    errors.NotAuthenticated: Code.UNAUTHORIZED,
    errors.Busy: Code.TOO_MANY_REQUESTS,
    errors.BufferFull: Code.TOO_MANY_REQUESTS,
    # A full disk: clients try again later, and slower.
    errors.StoreNotWritable: Code.TOO_MANY_REQUESTS,
    errors.NotEnoughReplicas: Code.HA_NOT_AVAILABLE,
    errors.TimedOut: Code.PROXY_TIMEOUT,
    errors.BrokerUnavailable: Code.PROXY_TIMEOUT,
    errors.NameserverUnavailable: Code.PROXY_TIMEOUT,
    errors.OffsetServiceUnavailable: Code.PROXY_TIMEOUT,
}


class Refusal(Exception):
    """A call, or one message of it, is answered with a code that is not OK.

    Args:
        code: of the protocol.
        text: for people, without the code's name.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> Status:
        return status(self.code, str(self))


OK = Status(code=Code.OK, message="OK")


def enum_name(enum: Any, value: int) -> str:
    """A value's name; its number where a client has said what the protocol does not know."""
    return str(enum.Name(value) if value in enum.values() else value)


def status(code: Code, text: str = "") -> Status:
    """A status whose text begins with the code's name."""
    name = Code.Name(code)
    return Status(code=code, message=f"{name}{_SEPARATOR}{text}" if text else name)


def status_of(error: Refusal | RockoonError) -> Status:
    """What a client is told of an error."""
    if isinstance(error, Refusal):
        return error.status
    return status(BY_ERROR.get(type(error), Code.INTERNAL_SERVER_ERROR), str(error))


def common_status(each: Sequence[Status]) -> Status:
    """The status of a call, of those of its entries: theirs if they agree, MULTIPLE_RESULTS
    otherwise."""
    if all(one is each[0] for one in each) or len({one.code for one in each}) == 1:
        return each[0]
    return status(Code.MULTIPLE_RESULTS)
