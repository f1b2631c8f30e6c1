"""A silent peer is aborted, a slow one is not."""

import asyncio
from typing import Any

from rockoon_rpc.connection import ENDED, SessionConnection
from rockoon_rpc.limits import Limits
from rockoon_rpc.liveness import LOOK_AGAIN_SECONDS, Liveness
from rockoon_rpc.turns import Turns
from support.eventually import eventually

LIVENESS = Liveness(ping_seconds=0.05, answer_seconds=0.05)


class FullTransport:
    """Holds the same number of bytes however much its peer reads."""

    def __init__(self) -> None:
        self.is_aborted = False

    def get_extra_info(self, _name: str) -> Any:
        return self

    def setsockopt(self, *_option: object) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 1 << 20

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_peer_that_reads_slowly_is_not_silent() -> None:
    session: Any = ENDED
    connection, transport = (
        SessionConnection(session, Limits(), LIVENESS, Turns.of_loop().own),
        FullTransport(),
    )
    connection.connection_made(transport)
    loop = asyncio.get_running_loop()
    end = loop.time() + 3 * (LIVENESS.ping_seconds + LIVENESS.answer_seconds + LOOK_AGAIN_SECONDS)
    while loop.time() < end:
        connection.pause_writing()
        await asyncio.sleep(LIVENESS.answer_seconds / 10)
        connection.resume_writing()
    assert not transport.is_aborted
    # It reads nothing any more.
    await eventually(lambda: transport.is_aborted)
