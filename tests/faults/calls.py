"""Every call of every service, from the descriptors, with arbitrary requests of any caller."""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from rockoon_core.errors import ERROR_METADATA_KEY
from rockoon_proto.v1 import (
    access_pb2,
    broker_pb2,
    in_flight_pb2,
    logs_pb2,
    nameserver_pb2,
    offset_pb2,
    settings_pb2,
)
from rockoon_proto.v1.errors_pb2 import Error

FILES: Mapping[str, Sequence[Any]] = {
    "nameserver-a": (
        nameserver_pb2.DESCRIPTOR,
        access_pb2.DESCRIPTOR,
        logs_pb2.DESCRIPTOR,
        settings_pb2.DESCRIPTOR,
    ),
    "broker-a": (broker_pb2.DESCRIPTOR,),
    "offset": (offset_pb2.DESCRIPTOR, in_flight_pb2.DESCRIPTOR),
}
CALL_SECONDS_MAX = 20.0
STREAM_SECONDS = 0.3
DEPTH_MAX = 4
_INTEGERS = (0, 1, 2, -1, 7, 100, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 62, (1 << 63) - 1)


@dataclass(frozen=True)
class Method:
    """A call that a node serves."""

    node: str
    descriptor: MethodDescriptor

    @property
    def path(self) -> str:
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def name(self) -> str:
        return f"{self.descriptor.containing_service.name}.{self.descriptor.name}"

    def request(self) -> Message:
        """An empty request."""
        made: Message = GetMessageClass(self.descriptor.input_type)()
        return made


def methods() -> list[Method]:
    return [
        Method(node, method)
        for node, files in FILES.items()
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    ]


@dataclass(frozen=True)
class Answer:
    """Result of a call: gRPC's status, and the code of the error table (also in replies)."""

    status: str
    code: str
    details: str


async def call(channel: Any, method: Method, requests: Sequence[bytes]) -> Answer:
    """Make a call with bytes as requests. Of a stream of replies, wait for the first one that says
    more than that the service is there."""
    descriptor = method.descriptor
    kind = ("stream" if descriptor.client_streaming else "unary") + (
        "_stream" if descriptor.server_streaming else "_unary"
    )
    reply_class = GetMessageClass(descriptor.output_type)
    make = getattr(channel, kind)(
        method.path,
        request_serializer=lambda each: (
            each if isinstance(each, bytes) else each.SerializeToString()
        ),
        response_deserializer=reply_class.FromString,
    )

    async def stream() -> Any:
        for request in requests:
            yield request
        if descriptor.server_streaming:
            # A reader that has ended its requests reads no queue any more.
            await asyncio.Event().wait()

    given = stream() if descriptor.client_streaming else requests[0]
    seconds = STREAM_SECONDS if descriptor.server_streaming else CALL_SECONDS_MAX
    made = make(given, timeout=seconds)
    reply = None
    try:
        if descriptor.server_streaming:
            async for reply in made:
                if reply.ByteSize():
                    break
            made.cancel()
        else:
            reply = await made
    except grpc.RpcError as failure:
        return answer_of(failure)
    except asyncio.CancelledError:
        # The call's own cancellation: streams are cancelled above.
        if not made.cancelled():
            raise
    # Of a stream whose replies are for several requests each, the first one's.
    told = next(iter(getattr(reply, "answers", ())), reply)
    code = ""
    if told is not None and "error" in told.DESCRIPTOR.fields_by_name and told.HasField("error"):
        code = Error.Code.Name(told.error.code)
    return Answer("OK", code, "")


def answer_of(failure: grpc.RpcError) -> Answer:
    code = ""
    assert isinstance(failure, aio.AioRpcError)
    for key, value in failure.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            error = Error()
            error.ParseFromString(value)
            code = Error.Code.Name(error.code)
    return Answer(failure.code().name, code, (failure.details() or "")[:300])


class Maker:
    """Makes messages of any type.

    Args:
        chance: source of all random choices.
        known: field name → values with a meaning for the services.
    """

    def __init__(self, chance: random.Random, known: Mapping[str, Sequence[Any]]) -> None:
        self._chance = chance
        self._known = known

    def message(self, descriptor: Descriptor, depth: int = 0) -> Message:
        made: Message = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self._chance.random() < (0.85 if depth == 0 else 0.7):
                self._fill(made, field, depth)
        return made

    def _fill(self, made: Message, field: FieldDescriptor, depth: int) -> None:
        nested = field.message_type
        if nested is not None and depth >= DEPTH_MAX:
            return
        if nested is not None and nested.GetOptions().map_entry:
            return
        if field.is_repeated:
            into = getattr(made, field.name)
            for _ in range(self._chance.choice((0, 1, 1, 2, 9))):
                into.append(
                    self.message(nested, depth + 1) if nested is not None else self.value(field)
                )
        elif nested is not None:
            getattr(made, field.name).CopyFrom(self.message(nested, depth + 1))
        else:
            setattr(made, field.name, self.value(field))

    def value(self, field: FieldDescriptor) -> Any:
        """Return a value of a scalar field: a known one, or any."""
        chance = self._chance
        known = self._known.get(field.name)
        if known and field.enum_type is None and chance.random() < 0.8:
            return chance.choice(known)
        if field.type == FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        if field.type == FieldDescriptor.TYPE_STRING:
            return chance.choice(("", "x", "fuzz", "x" * 300, "\0", "é 𝄞", "%RETRY%fuzz", "a\n b"))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice((0, 1, 4, 20, 1000)))
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return chance.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
        if field.enum_type is not None:
            return chance.choice([*(each.number for each in field.enum_type.values), 99])
        value = chance.choice(_INTEGERS)
        bits = 32 if "32" in _type_name(field) else 64
        if "UINT" in _type_name(field) or "FIXED" in _type_name(field):
            return abs(value) % (1 << bits)
        limit = 1 << (bits - 1)
        return max(-limit, min(limit - 1, value))

    def mutated(self, raw: bytes) -> bytes:
        """Return bytes with some of them changed, dropped or added."""
        changed = bytearray(raw)
        for _ in range(self._chance.choice((1, 1, 2, 8))):
            at = self._chance.randrange(len(changed) + 1)
            what = self._chance.randrange(3)
            if what == 0 and at < len(changed):
                changed[at] ^= 1 << self._chance.randrange(8)
            elif what == 1:
                del changed[at : at + self._chance.choice((1, 5))]
            else:
                changed[at:at] = self._chance.randbytes(self._chance.choice((1, 5)))
        return bytes(changed)


def _type_name(field: FieldDescriptor) -> str:
    for name in ("INT32", "SINT32", "SFIXED32", "INT64", "SINT64", "SFIXED64"):
        if field.type == getattr(FieldDescriptor, f"TYPE_{name}"):
            return name.replace("SFIXED", "SINT")
    return {
        FieldDescriptor.TYPE_UINT32: "UINT32",
        FieldDescriptor.TYPE_FIXED32: "FIXED32",
        FieldDescriptor.TYPE_UINT64: "UINT64",
        FieldDescriptor.TYPE_FIXED64: "FIXED64",
    }[field.type]


def parses(method: Method, raw: bytes) -> bool:
    """Return whether bytes are a request of a method; otherwise they never reach the service."""
    try:
        method.request().ParseFromString(raw)
    except Exception:  # noqa: BLE001 - whatever protobuf says
        return False
    return True


def requests_of(method: Method, maker: Maker, chance: random.Random) -> Iterator[list[bytes]]:
    """Yield requests without end: made from the descriptor, mutated, and random bytes."""
    while True:
        count = chance.choice((1, 1, 3)) if method.descriptor.client_streaming else 1
        raw = [
            maker.message(method.descriptor.input_type).SerializeToString() for _ in range(count)
        ]
        yield raw
        yield [maker.mutated(each) for each in raw]
        yield [chance.randbytes(chance.choice((0, 1, 3, 30, 500)))] * count
