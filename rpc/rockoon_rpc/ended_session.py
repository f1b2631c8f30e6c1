"""Session of a closed connection: it receives no events, and discards everything that is sent.

`connection_lost` replaces the session of a connection by it. Request handlers may hold a reference
to the connection for a long time; the memory of the real session must be freed before.
"""
# ruff: noqa: ARG002 - the arguments are those of a session

from collections.abc import Sequence
from typing import Any

from rockoon_rpc.session import Buffer, Event, Metadata


class EndedSession:
    """Session without effect, for servers and clients; see `session`."""

    is_behind = False
    unsent_bytes = 0
    open_streams = 0
    streams_max = 0

    def receive(self, data: Buffer) -> list[Event]:
        return []

    def hold(self, stream: int) -> None: ...

    def resume(self, stream: int) -> None: ...

    def output(self) -> tuple[Sequence[Buffer], Sequence[Event]]:
        return (), ()

    def send(self, stream: int, message: bytes | list[bytes], framed: bool = False) -> bool:
        return True

    def reset(self, stream: int, code: int) -> None: ...

    def ping(self) -> None: ...

    def close(self, code: int, text: str) -> None: ...

    def respond(
        self, stream: int, message: bytes, trailing: Metadata = (), framed: bool = False
    ) -> bool:
        return True

    def begin(self, stream: int, metadata: Metadata = ()) -> None: ...

    def finish(self, stream: int, status: int, details: str, trailing: Metadata = ()) -> bool:
        return True

    def leave(self, at_once: bool) -> None: ...

    def request(
        self,
        head: Any,
        message: bytes | None,
        timeout: float | None = None,
        metadata: Metadata = (),
        one_answer: bool = True,
    ) -> int:
        return 0

    def end(self, stream: int) -> None: ...


ENDED = EndedSession()
