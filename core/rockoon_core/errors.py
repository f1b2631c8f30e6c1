"""The error table: every failure with a code, equal on both sides of the wire.

One class is one row: its code (stable, in errors.proto), the gRPC status of the reply, whether the
same request may succeed later, and the sentence for people. Servers raise these classes; the wire
carries them as an `Error` message in trailing metadata; the SDK raises the same class.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from rockoon_core.reset_bounds import (
    PLANNED_OFFSETS_MAX,
    PLANS_MAX,
    RESET_OFFSETS_MAX,
    RESETS_MAX,
)
from rockoon_core.valid_text import exception_text, valid_text
from rockoon_proto.v1.errors_pb2 import Error
from rockoon_rpc.status import without_addresses

ERROR_METADATA_KEY = "rockoon-error-bin"
PRESSURE = "pressure"
"""Cause of `StoreNotWritable`: the store refuses clients' messages, but writes its own."""

# Names of grpc.StatusCode instead of its members: modules without I/O raise these errors and do not
# import gRPC. The server's guard and failed_call.py convert them.
StatusName = Literal[
    "ABORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "UNKNOWN",
]


class RockoonError(Exception):
    """Base of all errors of the error table.

    Args:
        message: the sentence; default: the row's own, filled in from `details`.
        details: named facts, with all names in the row's sentence.

    Both are converted to valid Unicode without addresses of objects in memory, so that each error
    can be sent.
    """

    code: ClassVar[Error.Code] = Error.UNSPECIFIED
    status: ClassVar[StatusName] = "UNKNOWN"
    retriable: ClassVar[bool] = False
    sentence: ClassVar[str] = "{reason}"

    def __init__(self, message: str | None = None, /, **details: object) -> None:
        if message is None:
            # The text of an exception comes from a program, and reading it may fail.
            facts = {
                name: exception_text(value) if isinstance(value, BaseException) else value
                for name, value in details.items()
            }
            message = self.sentence.format(**facts)
        super().__init__(without_addresses(valid_text(message)))
        self.details = {
            name: without_addresses(valid_text(value)) for name, value in details.items()
        }

    @property
    def name(self) -> str:
        """The code's name in the table, for example "TOPIC_NOT_FOUND"."""
        return Error.Code.Name(self.code)

    def to_wire(self) -> Error:
        return Error(
            code=self.code, message=str(self), retriable=self.retriable, details=self.details
        )


class InvalidArgument(RockoonError):
    code = Error.INVALID_ARGUMENT
    status = "INVALID_ARGUMENT"
    sentence = "the request is not valid: {reason}"


class InvalidTopicName(RockoonError):
    code = Error.INVALID_TOPIC_NAME
    status = "INVALID_ARGUMENT"
    sentence = "{topic!r} is not a topic name: {reason}"


class InvalidGroupName(RockoonError):
    code = Error.INVALID_GROUP_NAME
    status = "INVALID_ARGUMENT"
    sentence = "{group!r} is not a consumer group name: {reason}"


class WrongCluster(RockoonError):
    code = Error.WRONG_CLUSTER
    status = "FAILED_PRECONDITION"
    sentence = (
        "this is cluster {cluster!r}, the caller wants {wanted!r}: check the nameserver addresses"
    )


class MalformedBatch(RockoonError):
    code = Error.MALFORMED_BATCH
    status = "INVALID_ARGUMENT"
    sentence = "the batch is malformed at record {index}: {reason}"


class BodyTooLarge(RockoonError):
    code = Error.BODY_TOO_LARGE
    status = "INVALID_ARGUMENT"
    sentence = "the body of message {index} is larger than {limit} bytes"


class PropertiesTooLarge(RockoonError):
    code = Error.PROPERTIES_TOO_LARGE
    status = "INVALID_ARGUMENT"
    sentence = "the properties of message {index} are larger than {limit} bytes"


class InvalidOffset(RockoonError):
    code = Error.INVALID_OFFSET
    status = "OUT_OF_RANGE"
    sentence = "{offset} is not an offset: it must be between 0 and 2^62"


class InvalidProperty(RockoonError):
    code = Error.INVALID_PROPERTY
    status = "INVALID_ARGUMENT"
    sentence = "property {name!r} cannot be sent: {reason}"


class InvalidExpression(RockoonError):
    code = Error.INVALID_EXPRESSION
    status = "INVALID_ARGUMENT"
    sentence = "{expression!r} is not a subscription expression: {reason}"


class InvalidDelay(RockoonError):
    code = Error.INVALID_DELAY
    status = "INVALID_ARGUMENT"
    sentence = "message {index} cannot be delayed: {reason}"


class DelayTooLong(RockoonError):
    code = Error.DELAY_TOO_LONG
    status = "INVALID_ARGUMENT"
    sentence = (
        "message {index} is to be delivered {seconds} s from now, and the broker accepts delays "
        "of {seconds_max} s at most (delay_seconds_max)"
    )


class KeyMissing(RockoonError):
    code = Error.KEY_MISSING
    status = "INVALID_ARGUMENT"
    sentence = (
        "message {index} has no key: topic {topic!r} is compacted (cleanup.policy = COMPACTION) and"
        " keeps the newest message of each key"
    )


class TopicNotFound(RockoonError):
    code = Error.TOPIC_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "topic {topic!r} does not exist"


class QueueNotFound(RockoonError):
    code = Error.QUEUE_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "topic {topic!r} has no queue {queue} on broker {broker!r}"


class GroupNotFound(RockoonError):
    code = Error.GROUP_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "consumer group {group!r} does not exist"


class MessageNotFound(RockoonError):
    code = Error.MESSAGE_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "no message is stored at {position}"


class ResetNotFound(RockoonError):
    code = Error.RESET_NOT_FOUND
    status = "NOT_FOUND"
    sentence = (
        "reset {reset!r} does not exist: plans are kept for a limited time (setting plan_seconds "
        f"of the offset service), and only the newest {PLANS_MAX:,} with at most "
        f"{PLANNED_OFFSETS_MAX:,} offsets in total; of applied resets, the newest {RESETS_MAX:,} "
        f"with at most {RESET_OFFSETS_MAX:,} offsets in total are kept"
    )


class BrokerNotFound(RockoonError):
    code = Error.BROKER_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "no live broker is named {broker!r}"


class MemberNotFound(RockoonError):
    code = Error.MEMBER_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "group {group!r} keeps no progress of a member {member!r}"


class LogTrimmed(RockoonError):
    code = Error.LOG_TRIMMED
    status = "OUT_OF_RANGE"
    sentence = (
        "physical offset {position} of the log of broker {broker!r} was deleted by retention: the"
        " log begins at {log_min_offset} now"
    )


class GenerationNotFound(RockoonError):
    code = Error.GENERATION_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "broker {broker!r} has no file {file!r} of generation {generation}: {reason}"


class AccessKeyNotFound(RockoonError):
    code = Error.ACCESS_KEY_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "there is no access key {key!r}"


class LogNotFound(RockoonError):
    code = Error.LOG_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "no log is named {log!r}"


class TopicExists(RockoonError):
    code = Error.TOPIC_EXISTS
    status = "ALREADY_EXISTS"
    sentence = "topic {topic!r} exists already"


class GroupExists(RockoonError):
    code = Error.GROUP_EXISTS
    status = "ALREADY_EXISTS"
    sentence = "consumer group {group!r} exists already"


class NodeNameTaken(RockoonError):
    code = Error.NODE_NAME_TAKEN
    status = "ALREADY_EXISTS"
    sentence = (
        "{name!r} is the name of a live node with another store, at {address}: choose "
        "another name or stop that one"
    )


class MemberIdTaken(RockoonError):
    code = Error.MEMBER_ID_TAKEN
    status = "ALREADY_EXISTS"
    sentence = (
        "member id {member!r} of group {group!r} is in use by a live process: ids must be unique"
    )


class Fenced(RockoonError):
    code = Error.FENCED
    status = "FAILED_PRECONDITION"
    sentence = (
        "epoch {epoch} of queue {queue} has ended (now {current}): another member owns the queue, "
        "or it was reset; resolve it again"
    )


class CommitBehind(RockoonError):
    code = Error.COMMIT_BEHIND
    status = "FAILED_PRECONDITION"
    sentence = (
        "offset {offset} is behind the stored {stored} of queue {queue}: progress only "
        "goes back when forced"
    )


class OffsetBeyondEnd(RockoonError):
    code = Error.OFFSET_BEYOND_END
    status = "OUT_OF_RANGE"
    sentence = "offset {offset} is beyond the end {end} of queue {queue}"


class TopicNotWritable(RockoonError):
    code = Error.TOPIC_NOT_WRITABLE
    status = "PERMISSION_DENIED"
    sentence = "topic {topic!r} is read-only"


class TopicNotReadable(RockoonError):
    code = Error.TOPIC_NOT_READABLE
    status = "PERMISSION_DENIED"
    sentence = "topic {topic!r} is write-only"


class GroupHasMembers(RockoonError):
    code = Error.GROUP_HAS_MEMBERS
    status = "FAILED_PRECONDITION"
    sentence = "group {group!r} has {members} live members: stop them first"


class PlanStale(RockoonError):
    code = Error.PLAN_STALE
    status = "ABORTED"
    sentence = (
        "progress has moved since reset {reset!r} was planned: plan it again, or reset without a "
        "plan (`rockoon offsets reset --yes`, `Admin.reset_offsets`)"
    )


class ConsumeDisabled(RockoonError):
    code = Error.CONSUME_DISABLED
    status = "FAILED_PRECONDITION"
    sentence = "group {group!r} is paused"


class TopicChanged(RockoonError):
    code = Error.TOPIC_CHANGED
    status = "ABORTED"
    sentence = "topic {topic!r} was changed concurrently: read it again"


class GroupChanged(RockoonError):
    code = Error.GROUP_CHANGED
    status = "ABORTED"
    sentence = "group {group!r} was changed concurrently: read it again"


class AccessKeyChanged(RockoonError):
    code = Error.ACCESS_KEY_CHANGED
    status = "ABORTED"
    sentence = "access key {key!r} was changed concurrently: read it again"


class SettingChanged(RockoonError):
    code = Error.SETTING_CHANGED
    status = "ABORTED"
    sentence = "live setting {setting!r} of {node} was changed concurrently: read it again"


class SequenceGap(RockoonError):
    code = Error.SEQUENCE_GAP
    status = "FAILED_PRECONDITION"
    sentence = (
        "queue {queue} of {topic!r} got sequence number {sequence} instead of {expected}: the"
        " messages between them are not stored"
    )


class SequenceUnknown(RockoonError):
    code = Error.SEQUENCE_UNKNOWN
    status = "FAILED_PRECONDITION"
    sentence = (
        "queue {queue} of {topic!r} may have sequence {sequence} already: the broker does not"
        " remember {what}"
    )


class IndexOff(RockoonError):
    code = Error.INDEX_OFF
    status = "FAILED_PRECONDITION"
    sentence = "broker {broker!r} keeps no index by key: start it with `index = on`"


class GenerationRefused(RockoonError):
    code = Error.GENERATION_REFUSED
    status = "FAILED_PRECONDITION"
    sentence = "generation {generation} is not adopted: {reason}"


class AccessKeyExists(RockoonError):
    code = Error.ACCESS_KEY_EXISTS
    status = "ALREADY_EXISTS"
    sentence = "access key {key!r} exists already"


class LogChanged(RockoonError):
    code = Error.LOG_CHANGED
    status = "ABORTED"
    sentence = "log {log!r} was changed concurrently: read it again"


class LogFrozen(RockoonError):
    code = Error.LOG_FROZEN
    status = "FAILED_PRECONDITION"
    sentence = "log {log!r} is frozen until it is adopted (`rockoon log adopt`): {reason}"


class EtcdUnavailable(RockoonError):
    code = Error.ETCD_UNAVAILABLE
    status = "UNAVAILABLE"
    retriable = True
    sentence = "etcd does not answer: reads are served from the cache, changes have to wait"


class NameserverUnavailable(RockoonError):
    code = Error.NAMESERVER_UNAVAILABLE
    status = "UNAVAILABLE"
    retriable = True
    sentence = "no nameserver answers at {address}"


class BrokerUnavailable(RockoonError):
    code = Error.BROKER_UNAVAILABLE
    status = "UNAVAILABLE"
    retriable = True
    sentence = "broker {broker!r} does not answer"


class OffsetServiceUnavailable(RockoonError):
    code = Error.OFFSET_SERVICE_UNAVAILABLE
    status = "UNAVAILABLE"
    retriable = True
    sentence = "the offset service does not answer"


class GatewayUnavailable(RockoonError):
    code = Error.GATEWAY_UNAVAILABLE
    status = "UNAVAILABLE"
    retriable = True
    sentence = "gateway {gateway!r} does not answer"


class NotReady(RockoonError):
    code = Error.NOT_READY
    status = "UNAVAILABLE"
    retriable = True
    sentence = "{service} is not ready: {reason}"


class StoreNotWritable(RockoonError):
    code = Error.STORE_NOT_WRITABLE
    status = "UNAVAILABLE"
    retriable = True
    sentence = "the broker accepts no messages now: {reason}"

    @property
    def is_pressure(self) -> bool:
        """True if the disk will have space again once groups have consumed, or retention has
        deleted, more messages (detail `cause` is PRESSURE). Otherwise the disk is full or refuses
        writes."""
        return self.details.get("cause") == PRESSURE


class RouteNotReached(RockoonError):
    code = Error.ROUTE_NOT_REACHED
    status = "UNAVAILABLE"
    retriable = True
    sentence = "routes up to revision {wanted} have not arrived yet (at {revision})"


class TimedOut(RockoonError):
    code = Error.TIMED_OUT
    status = "DEADLINE_EXCEEDED"
    retriable = True
    sentence = "{what} took longer than {seconds} s"


class Busy(RockoonError):
    code = Error.BUSY
    status = "RESOURCE_EXHAUSTED"
    retriable = True
    sentence = "too much at once: {reason}"


class NoWritableQueue(RockoonError):
    code = Error.NO_WRITABLE_QUEUE
    status = "UNAVAILABLE"
    retriable = True
    sentence = "topic {topic!r} has no writable queue on a live broker"


class BufferFull(RockoonError):
    code = Error.BUFFER_FULL
    status = "RESOURCE_EXHAUSTED"
    retriable = True
    sentence = "{limit} bytes are waiting to be sent: await producer.wait_capacity() between sends"


class Closed(RockoonError):
    code = Error.CLOSED
    status = "CANCELLED"
    sentence = "{what} is closed"


class QueueHeld(RockoonError):
    code = Error.QUEUE_HELD
    status = "UNAVAILABLE"
    retriable = True
    sentence = "queue {queue} is still held by {owner}, which has been asked to release it"


class NotLeader(RockoonError):
    code = Error.NOT_LEADER
    status = "UNAVAILABLE"
    retriable = True
    sentence = "{replica!r} does not lead log {log!r}"


class NotEnoughReplicas(RockoonError):
    code = Error.NOT_ENOUGH_REPLICAS
    status = "UNAVAILABLE"
    retriable = True
    sentence = "{connected} of the copies of log {log!r} are connected; {needed} are needed"


class TransactionNotFound(RockoonError):
    code = Error.TRANSACTION_NOT_FOUND
    status = "NOT_FOUND"
    sentence = "no half message of producer group {group!r} is at {position}"


class NotAcquired(RockoonError):
    code = Error.NOT_ACQUIRED
    status = "FAILED_PRECONDITION"
    sentence = (
        "the receiver no longer holds {count} of the messages; the first is {offset} of {queue}"
    )


class DelayedSettled(RockoonError):
    code = Error.DELAYED_SETTLED
    status = "FAILED_PRECONDITION"
    sentence = "the delayed message {message_id} was delivered or cancelled before"


class TransactionEnded(RockoonError):
    code = Error.TRANSACTION_ENDED
    status = "FAILED_PRECONDITION"
    sentence = "the transaction has ended already: {outcome}"


class NoExternalAddress(RockoonError):
    code = Error.NO_EXTERNAL_ADDRESS
    status = "FAILED_PRECONDITION"
    sentence = (
        "{name} has no external address, and this client came in by the nameservers' external "
        "listener: set advertise_external on {name}"
    )


class Internal(RockoonError):
    code = Error.INTERNAL
    status = "INTERNAL"
    sentence = "{service} failed: {reason}"


class StoreFailed(RockoonError):
    code = Error.STORE_FAILED
    status = "DATA_LOSS"
    sentence = "the store failed and accepts no more data: {reason}"


class StoreCorrupt(RockoonError):
    code = Error.STORE_CORRUPT
    status = "DATA_LOSS"
    sentence = "{path} is damaged: {reason}"


class StoreLocked(RockoonError):
    code = Error.STORE_LOCKED
    status = "FAILED_PRECONDITION"
    sentence = "{path} is in use by another process"


class TlsFailed(RockoonError):
    code = Error.TLS_FAILED
    status = "UNAUTHENTICATED"
    sentence = "no TLS connection to {address}: {reason}"


class WrongIdentity(RockoonError):
    code = Error.WRONG_IDENTITY
    status = "PERMISSION_DENIED"
    sentence = (
        "the certificate shown is that of {identity}: to register as {name!r} it must have the "
        "common name or DNS name {wanted!r}"
    )


class NotAuthenticated(RockoonError):
    code = Error.NOT_AUTHENTICATED
    status = "UNAUTHENTICATED"
    sentence = "the caller is not authenticated: {reason}"


class NotPermitted(RockoonError):
    code = Error.NOT_PERMITTED
    status = "PERMISSION_DENIED"
    sentence = "access key {key!r} has no {action} permission on {resource}"


TABLE: Mapping[int, type[RockoonError]] = {row.code: row for row in RockoonError.__subclasses__()}


def from_wire(error: Error) -> RockoonError:
    """Return the exception for an `Error` message; an unknown code becomes Internal."""
    row = TABLE.get(error.code, Internal)
    return row(error.message, **dict(error.details))
