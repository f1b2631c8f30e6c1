"""A listener over TLS: connections count before they have shaken hands, and refusals are logged.

asyncio's own servers tell of a connection when its handshake is over, and of one that fails nobody.
So many that say nothing would have all the files of a process, and a certificate that is refused
would be known to its owner alone, to whom TLS has no words for it.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

log = logging.getLogger(__name__)

# At most one line in so many seconds: anybody may fail, as often as he likes.
SAY_SECONDS = 1.0
# While no further file can be opened.
PAUSE_SECONDS = 1.0
# Accepted before the loop has its turn.
ACCEPTED_MAX = 100


class TlsListener:
    """Accepts until it is closed.

    Args:
        listening: the socket.
        tls: how hands are shaken.
        connection: makes a connection's protocol.
        has_room: whether one more is taken, beside so many that shake hands.
        handshake_seconds_max: how long that may take.
    """

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext,
        connection: Callable[[], asyncio.BaseProtocol],
        has_room: Callable[[int], bool],
        handshake_seconds_max: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._tls = tls
        self._connection = connection
        self._has_room = has_room
        self._handshake_seconds_max = handshake_seconds_max
        self._handshakes: set[asyncio.Task[None]] = set()
        self._refused = 0
        self._say_after = 0.0
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Take no further connections; those that shake hands are ended."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._handshakes:
            task.cancel()

    def _begin(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as failure:
                log.warning("no connection can be taken: %s", failure)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._begin)
                return
            if not self._has_room(len(self._handshakes)):
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._shake_hands(accepted, address[0]))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_seconds_max,
            )
        except OSError as failure:
            accepted.close()
            self._say(address, failure)
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _say(self, address: str, failure: OSError) -> None:
        self._refused += 1
        now = self._loop.time()
        if now >= self._say_after:
            count, self._refused = self._refused, 0
            more = f", and {count - 1} more since the last line" if count > 1 else ""
            log.info("TLS: the handshake of %s failed%s: %s", address, more, failure)
            self._say_after = now + SAY_SECONDS
