"""Codes of the protocol for Rockoon's error table. Pure."""

from collections.abc import Sequence
from typing import Any

from rockoon_core import errors
from rockoon_core.errors import RockoonError
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Status

# The name comes first in all texts: an assertion of RocketMQ's own test suite looks for it.
_SEPARATOR = ": "
# A text may quote a field of the request; that of a Telemetry stream is sent in a header.
TEXT_CHARACTERS_MAX = 1024

# A code for each error. 4xxxx: the caller has to change the request, or a conflict has to end.
# 5xxxx: the cluster cannot do it now; official clients repeat a send immediately.
# TOO_MANY_REQUESTS: the only code after which official clients wait before they repeat a send.
BY_ERROR: dict[type[RockoonError], Code] = {
    # The request.
    errors.InvalidArgument: Code.BAD_REQUEST,
    errors.InvalidTopicName: Code.ILLEGAL_TOPIC,
    errors.InvalidGroupName: Code.ILLEGAL_CONSUMER_GROUP,
    errors.InvalidExpression: Code.ILLEGAL_FILTER_EXPRESSION,
    errors.InvalidProperty: Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    errors.InvalidDelay: Code.ILLEGAL_DELIVERY_TIME,
    errors.DelayTooLong: Code.ILLEGAL_DELIVERY_TIME,
    errors.InvalidOffset: Code.ILLEGAL_OFFSET,
    errors.MalformedBatch: Code.MESSAGE_CORRUPTED,
    errors.BodyTooLarge: Code.MESSAGE_BODY_TOO_LARGE,
    errors.PropertiesTooLarge: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    errors.KeyMissing: Code.ILLEGAL_MESSAGE_KEY,
    # Something that the request names does not exist.
    errors.TopicNotFound: Code.TOPIC_NOT_FOUND,
    errors.QueueNotFound: Code.TOPIC_NOT_FOUND,
    errors.GroupNotFound: Code.CONSUMER_GROUP_NOT_FOUND,
    errors.MessageNotFound: Code.NOT_FOUND,
    errors.ResetNotFound: Code.NOT_FOUND,
    errors.BrokerNotFound: Code.NOT_FOUND,
    errors.MemberNotFound: Code.NOT_FOUND,
    errors.GenerationNotFound: Code.NOT_FOUND,
    errors.AccessKeyNotFound: Code.NOT_FOUND,
    errors.LogNotFound: Code.NOT_FOUND,
    errors.LogTrimmed: Code.ILLEGAL_OFFSET,
    errors.TransactionNotFound: Code.INVALID_TRANSACTION_ID,
    # The request does not fit the state.
    errors.TopicExists: Code.PRECONDITION_FAILED,
    errors.GroupExists: Code.PRECONDITION_FAILED,
    errors.AccessKeyExists: Code.PRECONDITION_FAILED,
    errors.MemberIdTaken: Code.PRECONDITION_FAILED,
    errors.Fenced: Code.PRECONDITION_FAILED,
    errors.GroupHasMembers: Code.PRECONDITION_FAILED,
    errors.PlanStale: Code.PRECONDITION_FAILED,
    errors.TopicChanged: Code.PRECONDITION_FAILED,
    errors.GroupChanged: Code.PRECONDITION_FAILED,
    errors.AccessKeyChanged: Code.PRECONDITION_FAILED,
    errors.SettingChanged: Code.PRECONDITION_FAILED,
    errors.LogChanged: Code.PRECONDITION_FAILED,
    errors.GenerationRefused: Code.PRECONDITION_FAILED,
    errors.QueueHeld: Code.PRECONDITION_FAILED,
    errors.CommitBehind: Code.ILLEGAL_OFFSET,
    errors.OffsetBeyondEnd: Code.ILLEGAL_OFFSET,
    errors.TopicNotWritable: Code.FORBIDDEN,
    errors.TopicNotReadable: Code.FORBIDDEN,
    errors.NoWritableQueue: Code.FORBIDDEN,
    errors.ConsumeDisabled: Code.FORBIDDEN,
    errors.TransactionEnded: Code.INVALID_TRANSACTION_ID,
    errors.DelayedSettled: Code.NOT_FOUND,
    errors.NotAcquired: Code.INVALID_RECEIPT_HANDLE,
    errors.NotPermitted: Code.UNAUTHORIZED,
    errors.NotAuthenticated: Code.UNAUTHORIZED,
    # A limit of the cluster is reached.
    errors.Busy: Code.TOO_MANY_REQUESTS,
    errors.BufferFull: Code.TOO_MANY_REQUESTS,
    # A part of the cluster does not answer, or not yet.
    errors.NotEnoughReplicas: Code.HA_NOT_AVAILABLE,
    errors.TimedOut: Code.PROXY_TIMEOUT,
    errors.NotReady: Code.PROXY_TIMEOUT,
    errors.RouteNotReached: Code.PROXY_TIMEOUT,
    errors.NotLeader: Code.PROXY_TIMEOUT,
    errors.EtcdUnavailable: Code.PROXY_TIMEOUT,
    errors.BrokerUnavailable: Code.PROXY_TIMEOUT,
    errors.NameserverUnavailable: Code.PROXY_TIMEOUT,
    errors.OffsetServiceUnavailable: Code.PROXY_TIMEOUT,
    errors.GatewayUnavailable: Code.PROXY_TIMEOUT,
    # An operator has to repair or configure something.
    errors.IndexOff: Code.NOT_IMPLEMENTED,
    errors.StoreNotWritable: Code.INTERNAL_SERVER_ERROR,
    errors.StoreFailed: Code.INTERNAL_SERVER_ERROR,
    errors.StoreCorrupt: Code.INTERNAL_SERVER_ERROR,
    errors.StoreLocked: Code.INTERNAL_SERVER_ERROR,
    errors.LogFrozen: Code.INTERNAL_SERVER_ERROR,
    errors.NodeNameTaken: Code.INTERNAL_SERVER_ERROR,
    errors.NoExternalAddress: Code.INTERNAL_SERVER_ERROR,
    errors.WrongCluster: Code.INTERNAL_SERVER_ERROR,
    errors.TlsFailed: Code.INTERNAL_SERVER_ERROR,
    errors.WrongIdentity: Code.INTERNAL_SERVER_ERROR,
    # The gateway's own connection, or its own producer: another gateway may do it.
    errors.Closed: Code.INTERNAL_SERVER_ERROR,
    errors.SequenceGap: Code.INTERNAL_SERVER_ERROR,
    errors.SequenceUnknown: Code.INTERNAL_SERVER_ERROR,
    errors.Internal: Code.INTERNAL_SERVER_ERROR,
}


class Refusal(Exception):
    """A call, or one message in it, is refused with a code of the protocol.

    Args:
        code: not OK.
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
    """Return a value's name; its number if the protocol does not define it."""
    return str(enum.Name(value) if value in enum.values() else value)


def status(code: Code, text: str = "") -> Status:
    """Return a status whose text begins with the code's name and fits into a header."""
    if len(text) > TEXT_CHARACTERS_MAX:
        text = f"{text[:TEXT_CHARACTERS_MAX]}..."
    name = Code.Name(code)
    return Status(code=code, message=f"{name}{_SEPARATOR}{text}" if text else name)


def code_of(error: RockoonError) -> Code:
    """Return the protocol's code for an error."""
    if isinstance(error, errors.StoreNotWritable) and error.is_pressure:
        return Code.TOO_MANY_REQUESTS
    return BY_ERROR[errors.TABLE.get(error.code, errors.Internal)]


def status_of(error: Refusal | RockoonError) -> Status:
    if isinstance(error, Refusal):
        return error.status
    return status(code_of(error), str(error))


def common_status(each: Sequence[Status]) -> Status:
    """Return the status of a call from those of its entries: theirs if all are equal, otherwise
    MULTIPLE_RESULTS."""
    if all(one is each[0] for one in each) or len({one.code for one in each}) == 1:
        return each[0]
    return status(Code.MULTIPLE_RESULTS)
