"""Client in Python: each line of its input names a case, it plays the case and prints a line.

"CASE ADDRESS [ARGUMENT…]" is answered by "ok [NOTE]" or "failed REASON". With `--rockoon` it uses
Rockoon's channel instead of grpcio's.
"""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

MIB = 1 << 20
SECONDS_MAX = 50.0
DETAILS = "kein Wasser: 5 % Öl, 水"
REASON = {"x-reason": "dry", "x-reason-bin": b"\x00\xff,\x80"}
TEXT, BINARY = "text, with = and ;", bytes(range(256))
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


def check(holds: object, *seen: object) -> None:
    """Raises AssertionError with the given values."""
    if not holds:
        raise AssertionError(" ".join(map(repr, seen)))


def open_channel(address: str, ca: str = "", options: tuple[tuple[str, Any], ...] = ()) -> Any:
    if "--rockoon" in sys.argv:
        from rpc.peers import layer

        return layer.channel(address, Path(ca) if ca else None)
    options = (*OPTIONS, *options)
    if not ca:
        return aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
    return aio.secure_channel(address, credentials, options=options)


def unary(channel: Any, name: str, request: bytes = b"", **more: Any) -> Any:
    return channel.unary_unary(f"/peers.Peers/{name}")(request, **{"timeout": SECONDS_MAX, **more})


def stream(channel: Any, kind: str, name: str, request: Any = None, **more: Any) -> Any:
    return getattr(channel, kind)(f"/peers.Peers/{name}")(
        request, **{"timeout": SECONDS_MAX, **more}
    )


async def failure_of(call: Any) -> aio.AioRpcError:
    try:
        answer = await call
    except aio.AioRpcError as failure:
        return failure
    raise AssertionError(f"no error, but an answer of {len(answer)} bytes")


async def unary_case(channel: Any) -> None:
    for length in (0, 1, 16_379, 70_000):
        body = b"x" * length
        check(await unary(channel, "Echo", body) == body, length)


async def client_stream(channel: Any) -> None:
    for count, length in ((0, 0), (1, 10), (1_000, 100), (3, 200_000)):
        bodies = iter([bytes(length)] * count)
        answer = await stream(channel, "stream_unary", "Join", bodies)
        check(answer == f"{count} {count * length}".encode(), answer)


async def server_stream(channel: Any) -> None:
    for count, length in ((0, 0), (1, 10), (10_000, 100), (3, 200_000)):
        call = stream(channel, "unary_stream", "Split", f"{count} {length}".encode())
        lengths = [len(each) async for each in call]
        check(lengths == [length] * count, len(lengths))


async def bidirectional(channel: Any) -> None:
    call = stream(channel, "stream_stream", "Chat")
    for number in range(100):
        await call.write(str(number).encode())
        check(await call.read() == str(number).encode(), number)
    await call.done_writing()
    check(await call.read() is aio.EOF)
    check(await call.code() is grpc.StatusCode.OK)


async def long_messages(channel: Any, length: str) -> None:
    body = bytes(range(256)) * (int(length) // 256)
    check(await unary(channel, "Echo", body) == body, "unary")
    chat = stream(channel, "stream_stream", "Chat", iter([body, body]))
    check([each == body async for each in chat] == [True, True], "chat")


async def concurrent(channel: Any, count: str, gathered: str) -> str:
    request = f"{id(channel)} {gathered}".encode()
    calls = [unary(channel, "Gather", request) for _ in range(int(count))]
    found = {await call for call in calls}
    return f"{len(found)} connection{'s' * (len(found) > 1)}"


async def metadata(channel: Any) -> str:
    sent = (("x-text", TEXT), ("x-bytes-bin", BINARY), ("x-bytes-bin", b""), ("x-two", "1"))
    call = unary(channel, "Metadata", metadata=(*sent, ("x-two", "2")))
    await call
    initial = [] if "--rockoon" in sys.argv else [await call.initial_metadata()]
    for seen in (*initial, await call.trailing_metadata()):
        texts = [(key, value) for key, value in seen if key[:2] == "x-"]
        check(sorted(texts) == sorted((*sent, ("x-two", "2"))), texts)
    return "trailers only" if not initial else ""


async def error(channel: Any) -> None:
    late = stream(channel, "unary_stream", "FailLate", b"x")
    check(await late.read() == b"x")
    for call in (unary(channel, "Fail"), late.read()):
        failure = await failure_of(call)
        check(failure.code() is grpc.StatusCode.NOT_FOUND, failure.code())
        check(failure.details() == DETAILS, failure.details())
        seen = {key: value for key, value in failure.trailing_metadata() if key[:2] == "x-"}
        check(seen == REASON, seen)


async def deadline(channel: Any) -> None:
    milliseconds = int(await unary(channel, "Remaining", timeout=20))
    check(15_000 < milliseconds < 21_000, milliseconds)
    key = str(id(channel)).encode()
    failure = await failure_of(unary(channel, "Wait", key, timeout=1))
    check(failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED, failure.code())
    check(await unary(channel, "Ended", key) == b"yes", "the handler goes on")


async def cancel(channel: Any) -> None:
    key = f"unary {id(channel)}".encode()
    call = unary(channel, "Wait", key)
    check(await unary(channel, "Begun", key) == b"yes", "the unary handler does not begin")
    call.cancel()
    check(await unary(channel, "Ended", key) == b"yes", "the unary handler goes on")
    key = f"stream {id(channel)}".encode()
    chat = stream(channel, "stream_stream", "WaitStream")
    await chat.write(key)
    check(await chat.read() == key)
    chat.cancel()
    check(await unary(channel, "Ended", key) == b"yes", "the stream's handler goes on")


async def leave(channel: Any) -> None:
    await unary(channel, "Echo")
    call = stream(channel, "unary_stream", "Leave", b"x")
    check(await call.read() == b"x")
    over = asyncio.Event()

    async def calls() -> None:
        while not over.is_set():
            await unary(channel, "Echo", b"later")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(calls())
        check(await call.read() == b"x", "the call in progress is not completed")
        check(await call.read() is aio.EOF)
        over.set()
    await unary(channel, "Echo")


async def keepalive(channel: Any, quiet_ms: str) -> None:
    call = stream(channel, "unary_stream", "Quiet", quiet_ms.encode())
    first = await call.read()
    check(await call.read() == first)
    check(await unary(channel, "Gather", f"k{id(channel)} 1".encode()) == first, "reconnected")


async def unknown_method(channel: Any) -> None:
    failure = await failure_of(unary(channel, "Nothing"))
    check(failure.code() is grpc.StatusCode.UNIMPLEMENTED, failure.code())
    check("ethod" in str(failure.details()), failure.details())
    await unary(channel, "Echo")


async def too_long(channel: Any, length: str) -> None:
    failure = await failure_of(unary(channel, "Echo", bytes(int(length))))
    check(failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, failure.code(), failure.details())
    check(any(each.isdigit() for each in str(failure.details())), failure.details())
    failure = await failure_of(
        stream(channel, "stream_unary", "Join", iter([b"short", bytes(int(length))]))
    )
    check(failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, failure.code(), failure.details())
    await unary(channel, "Echo")


async def gzip(channel: Any) -> None:
    failure = await failure_of(
        unary(channel, "Echo", bytes(10_000), compression=grpc.Compression.Gzip)
    )
    check(failure.code() is grpc.StatusCode.UNIMPLEMENTED, failure.code())
    check("compress" in str(failure.details()), failure.details())
    await unary(channel, "Echo")


async def all_kinds(channel: Any) -> None:
    for case in (unary_case, client_stream, server_stream, bidirectional):
        await case(channel)
    await long_messages(channel, str(MIB))


CASES: Mapping[str, Callable[..., Awaitable[str | None]]] = {
    "unary": unary_case,
    "client-stream": client_stream,
    "server-stream": server_stream,
    "bidirectional": bidirectional,
    "long": long_messages,
    "concurrent": concurrent,
    "metadata": metadata,
    "error": error,
    "deadline": deadline,
    "cancel": cancel,
    "leave": leave,
    "keepalive": keepalive,
    "unknown-method": unknown_method,
    "too-long": too_long,
    "gzip": gzip,
    "tls": all_kinds,
}


async def play(name: str, address: str, *arguments: str) -> str:
    """A case's line."""
    ca = ""
    options: tuple[tuple[str, Any], ...] = ()
    if name == "tls":
        ca, arguments = arguments[0], ()
    if name == "keepalive":
        milliseconds, arguments = arguments[0], arguments[1:]
        options = (
            ("grpc.keepalive_time_ms", int(milliseconds)),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.max_pings_without_data", 0),
        )
    channel = open_channel(address, ca, options)
    try:
        return f"ok {await CASES[name](channel, *arguments) or ''}".strip()
    except Exception as failure:  # noqa: BLE001 - a case that fails is an outcome
        traceback.print_exc()
        return f"failed {failure!r}".replace("\n", " ")
    finally:
        await channel.close()


async def main() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(await play(*line.split()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
