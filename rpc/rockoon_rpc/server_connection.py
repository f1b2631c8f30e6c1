"""One HTTP/2 connection of a client at a server."""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import grpc

from rockoon_rpc import first_step
from rockoon_rpc import session as events
from rockoon_rpc.addresses import BROKEN_COST, Share
from rockoon_rpc.connection import CLOSE_SECONDS_MAX, SessionConnection
from rockoon_rpc.methods import Method
from rockoon_rpc.server_call import ServerCall
from rockoon_rpc.session import ErrorCode, Metadata, ServerSession
from rockoon_rpc.turns import Turns

if TYPE_CHECKING:
    from rockoon_rpc.server import Server


# Maximum of unconfirmed replies of one connection, for a peer that acknowledges no PING.
WAITING_MAX = 4096


class Receipts:
    """Tracks the replies of one connection that the client has not confirmed yet.

    HTTP/2 peers handle frames in order: a client that acknowledges a PING has received all replies
    that were sent before it. An HTTP/2 load balancer acknowledges PINGs itself, so a receipt then
    only proves arrival at the balancer. A TCP load balancer forwards them to the client.

    At most one PING is unacknowledged at a time; it confirms all replies queued before it.

    Args:
        ping: queues a PING after the queued frames.
    """

    __slots__ = ("_asked", "_is_on_its_way", "_ping", "_waiting")

    def __init__(self, ping: Callable[[], None]) -> None:
        self._ping = ping
        self._is_on_its_way = False
        # Callbacks by number of the answered stream: of replies queued before the unacknowledged
        # PING, and of replies queued after it.
        self._asked: dict[int, Callable[[bool], None]] = {}
        self._waiting: dict[int, Callable[[bool], None]] = {}

    def probe(self) -> None:
        """Send a PING if none is unacknowledged."""
        if not self._is_on_its_way:
            self._is_on_its_way = True
            self._ping()

    def ask(self, stream_id: int, then: Callable[[bool], None]) -> None:
        """Call `then` once: with True when the client has received the reply of a stream, with
        False if the client resets the stream before, or the connection ends before.

        Args:
            stream_id: number of the stream, whose whole reply is already queued.
        """
        if len(self._waiting) >= WAITING_MAX:
            then(False)
        elif self._is_on_its_way:
            self._waiting[stream_id] = then
        else:
            self._asked[stream_id] = then
            self.probe()

    def acknowledged(self) -> None:
        """Handle the acknowledgement of the PING: run the callbacks that it confirms."""
        confirmed, self._asked, self._waiting = self._asked, self._waiting, {}
        self._is_on_its_way = False
        if self._asked:
            self.probe()
        for then in confirmed.values():
            then(True)

    def reset(self, stream_id: int) -> None:
        """Handle a reset by the client, which discards a reply that it has not read."""
        then = self._asked.get(stream_id) or self._waiting.pop(stream_id, None)
        if stream_id in self._asked:
            # The PING is on its way.
            self._asked[stream_id] = _nothing
        if then is not None:
            then(False)

    def lost(self) -> None:
        """Handle the end of the connection: no pending reply is confirmed."""
        unconfirmed = [*self._asked.values(), *self._waiting.values()]
        self._asked, self._waiting = {}, {}
        for then in unconfirmed:
            then(False)


def _nothing(_is_received: bool) -> None:
    """Replaces the callback of a stream that was reset."""


class Budget:
    """A leaky bucket: a burst, and a rate beyond it.

    Args:
        burst: number of events that are allowed together.
        per_second: rate at which the budget recovers.
    """

    __slots__ = ("_at", "_burst", "_per_second", "_spent")

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._spent = 0.0
        self._at = 0.0

    def spend(self, count: float, now: float) -> bool:
        """Count events; return whether the budget covers them.

        Args:
            count: number of events; a negative number gives budget back.
            now: seconds, on the same clock in each call.
        """
        recovered = (now - self._at) * self._per_second
        self._spent = max(max(self._spent - recovered, 0.0) + count, 0.0)
        self._at = now
        return self._spent <= self._burst


class EndedCalls:
    """Calls of an ended connection, which are cancelled in turns; see `Turns.ended`.

    Args:
        address: address of the client.
        calls: the calls; each is closed already.
        code, reason: why they end.
    """

    __slots__ = ("_calls", "_code", "_reason", "address")

    def __init__(self, address: str, calls: Iterable[ServerCall], code: int, reason: str) -> None:
        self.address = address
        self._calls = deque(calls)
        self._code = code
        self._reason = reason

    def next_turn(self) -> None:
        """Cancel calls up to the limit of this iteration; join the line again if more are left."""
        line = Turns.of_loop().ended
        while self._calls and line.cost < line.cost_max:
            line.cost += 1
            self._calls.popleft().failed(self._code, self._reason)
        # In the next iteration the line sets its cost to 0.
        line.count_again()
        if self._calls:
            line.join(self)


# Between the two GOAWAYs of a connection that the server ends.
LEAVE_SECONDS = 0.5
# The server sends this frame once per `PROBE_SECONDS` to a peer that sends more than a turn of
# input. If the peer's process has ended, its system answers with a reset. The frame is an empty one
# of an unknown type, which every peer ignores (RFC 9113, section 5.5). A PING cannot replace it,
# because the session may already wait for the answer to one.
PROBE = bytes((0, 0, 0, 0x2A, 0, 0, 0, 0, 0))
PROBE_SECONDS = 1.0
# A connection that ends within this time and without a call was useless.
SHORT_SECONDS = 1.0
# Number of checks of a connection without calls until it is closed as idle.
IDLE_LOOKS = 4
# Costs of a frame without effect and of a reset, relative to `Limits.turn_bytes`. If more than half
# of a turn was waste, a pause follows, so a flood gets a tenth of one core.
IDLE_FRAME_COST = 512
RESET_COST = 2 << 10
WASTE_PAUSE_SECONDS = 0.01
_RESOURCE_EXHAUSTED: int = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


class ServerConnection(SessionConnection):
    """One HTTP/2 connection that a server has accepted.

    Args:
        server: handles its calls.
        share: usage of the client's address.

    Attributes:
        is_internal: the peer has called a method that only services of the cluster use.
        is_trusted: the peer has proven to be a service of the cluster.
        is_ready: the peer's SETTINGS have arrived.
    """

    event_methods: ClassVar[dict[int, str]] = {
        **SessionConnection.event_methods,
        events.CALL: "_call",
        events.OPENED: "_opened",
        events.ENDED: "_ended",
        events.LATE_RESET: "_late_reset",
        events.AWAITED: "_awaited",
    }
    session: ServerSession

    __slots__ = (
        "_auth_context", "_began", "_has_called", "_idle_budget", "_idle_looks", "_is_calmed",
        "_is_useless", "_peer", "_probe_at", "_receipts", "_request_timer", "_requests_due",
        "_reset_budget", "_timer", "is_internal", "is_ready", "is_trusted", "server", "share",
    )  # fmt: skip

    def __init__(self, server: "Server", share: Share) -> None:
        session = server.new_session()
        super().__init__(session, server.limits, server.liveness, Turns.of_loop().clients)
        self.server = server
        self.share = share
        self.address = share.address
        self.is_internal = self.is_trusted = False
        self.is_ready = self._is_calmed = False
        self._has_called = self._is_useless = False
        self._began = self.loop.time()
        self._receipts: Receipts | None = None
        # Ends a handshake that is too long; after the handshake, checks how long the connection is
        # idle.
        self._timer: asyncio.TimerHandle | None = None
        self._idle_looks = 0
        # Requests that are not complete, by number of the stream: the end of their time.
        self._requests_due: dict[int, float] | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._idle_budget: Budget | None = None
        self._reset_budget: Budget | None = None
        # From this time on, a turn in the line sends `PROBE`.
        self._probe_at = 0.0
        self._peer = ""
        self._auth_context: Mapping[str, list[bytes]] | None = None

    # The connection.

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.server.connected(self)
        self._timer = self.loop.call_later(self.server.handshake_seconds_max, transport.abort)

    def mark_internal(self, *, is_trusted: bool) -> None:
        """Mark the connection as one of a cluster service, because the peer has called an internal
        method. It changes to the line of internal connections (`turns.py`).

        Args:
            is_trusted: the peer has proven that it is a service of the cluster. Its calls are not
                limited, and its address gets no pauses.
        """
        if not self.is_internal:
            self.is_internal = True
            self._line = Turns.of_loop().services
        if is_trusted:
            self.is_trusted = self.share.is_internal = True

    def connection_lost(self, failure: BaseException | None) -> None:
        # Calls that wait for something end later.
        unfinished = self.session.open_streams - len(self.streams)
        if self._has_called:
            # Servicers of calls that wait may read them later.
            self._peer, self._auth_context = self.peer, self.auth_context
        elif self.loop.time() - self._began < SHORT_SECONDS:
            self._count_useless(1, "they have no call")
        super().connection_lost(failure)
        self.server.connection_ended(unfinished)
        for timer in (self._timer, self._request_timer):
            if timer is not None:
                timer.cancel()
        self._requests_due = None
        if self._receipts is not None:
            self._receipts.lost()
            self._receipts = None
        self.server.disconnected(self)

    def _ready(self) -> None:
        self.is_ready = True
        if self._timer is not None:
            self._timer.cancel()
        self._look_again()

    def _look_again(self) -> None:
        seconds = self.server.idle_seconds_max / IDLE_LOOKS
        self._timer = self.loop.call_later(seconds, self._look_idle)

    def _look_idle(self) -> None:
        if self.has_calls:
            self._idle_looks = 0
        self._idle_looks += 1
        if self._idle_looks > IDLE_LOOKS:
            self.leave(at_once=False)
        else:
            self._look_again()

    @property
    def peer(self) -> str:
        if not self._peer:
            name = self.transport.get_extra_info("peername") or ("", 0)
            host, port = name[0], name[1]
            self._peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        return self._peer

    @property
    def auth_context(self) -> Mapping[str, list[bytes]]:
        if self._auth_context is None:
            self._auth_context = certificate_context(self.transport.get_extra_info("ssl_object"))
        return self._auth_context

    @property
    def receipts(self) -> Receipts:
        """Tracks the replies whose receipt the client has not confirmed."""
        if self._receipts is None:
            self._receipts = Receipts(super().ping)
        return self._receipts

    def ping(self) -> None:
        self.receipts.probe()

    def _pong(self) -> None:
        self.receipts.acknowledged()

    @property
    def _is_full(self) -> bool:
        session = self.session
        return self.is_choked and (
            session.is_behind or session.unsent_bytes > self.limits.unsent_bytes_max
        )

    # Calls.

    def _call(
        self,
        stream_id: int,
        method: Method,
        metadata: Metadata,
        timeout: float | None,
        message: bytes,
    ) -> None:
        self._idle_looks = 0
        self._has_called = True
        if self._requests_due:
            self._requests_due.pop(stream_id, None)
        if refusal := self.server.refusal(self):
            self._refuse(stream_id, refusal)
            return
        call = ServerCall(self, stream_id, method, metadata, timeout)
        parse = method.parse
        try:
            request = message if parse is None else parse(message)
            steps = method.start(request, call)
        except Exception as failure:  # noqa: BLE001 - logged there
            call.raised(failure)
            return
        self._run(call, steps)

    def _opened(
        self, stream_id: int, method: Method, metadata: Metadata, timeout: float | None
    ) -> None:
        self._idle_looks = 0
        self._has_called = True
        if refusal := self.server.refusal(self):
            self._refuse(stream_id, refusal)
            return
        call = ServerCall(self, stream_id, method, metadata, timeout)
        self.enter(call)
        self._run(call, method.start(call.requests(method.parse), call))

    def _refuse(self, stream_id: int, reason: str) -> None:
        """End a new call before any object is made for it."""
        self.session.finish(stream_id, _RESOURCE_EXHAUSTED, reason)
        self.wrote()

    def _run(self, call: ServerCall, steps: first_step.Steps) -> None:
        task = first_step.run(self.loop, steps, call)
        if task is not None:
            call.task = task
            task.add_done_callback(call.settle)
            if not call.is_entered:
                self.enter(call)

    def enter(self, call: ServerCall) -> None:
        """Register a call whose handler waits for something, until the call ends."""
        call.is_entered = True
        self.server.entered(call)
        if call.is_closed:
            # Its servicer still runs.
            return
        if self.is_lost or self.is_closing:
            call.failed(ErrorCode.CANCEL, "the connection ended")
            return
        self.streams[call.id] = call
        call.watch_deadline()

    def _ended(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.peer_ended()

    def _reset(self, stream_id: int, code: int, reason: str) -> None:
        if self._requests_due:
            self._requests_due.pop(stream_id, None)
        self._late_reset(stream_id)
        super()._reset(stream_id, code, reason)

    def _late_reset(self, stream_id: int) -> None:
        if self._receipts is not None:
            self._receipts.reset(stream_id)

    # Requests that are not complete.

    def _awaited(self, stream_id: int) -> None:
        due = self.loop.time() + self.limits.request_seconds_max
        if self._requests_due is None:
            self._requests_due = {}
        self._requests_due[stream_id] = due
        if self._request_timer is None:
            self._request_timer = self.loop.call_at(due, self._end_late_requests)

    @property
    def has_calls(self) -> bool:
        """True if a call has not ended, the session has a call that it has not reported yet, or a
        reply is not written yet."""
        if self.is_lost or self.is_closing:
            return False
        return bool(self.streams or self.session.open_streams or self.is_choked)

    def _end_late_requests(self) -> None:
        self._request_timer = None
        now = self.loop.time()
        late = f"the request was not complete after {self.limits.request_seconds_max:g} s"
        status: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        requests = self._requests_due or {}
        # In the order of their headers.
        for stream_id, due in list(requests.items()):
            if due > now:
                self._request_timer = self.loop.call_at(due, self._end_late_requests)
                break
            del requests[stream_id]
            self.session.finish(stream_id, status, late)
        self.wrote()
        self.stream_over()

    # Waste.

    def _waste(self, idle_frames: int, resets: int) -> None:
        limits = self.limits
        if self._idle_budget is None or self._reset_budget is None:
            self._idle_budget = Budget(limits.idle_frames_burst, limits.idle_frames_per_second)
            self._reset_budget = Budget(limits.resets_burst, limits.resets_per_second)
        if idle_frames * IDLE_FRAME_COST + resets * RESET_COST > limits.turn_bytes // 2:
            self._pause_seconds = WASTE_PAUSE_SECONDS
        now = self.loop.time()
        if not self._idle_budget.spend(idle_frames, now):
            self.close(ErrorCode.ENHANCE_YOUR_CALM, "too many frames have no effect")
        elif not self._reset_budget.spend(resets, now):
            self.close(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def _broken(self, code: int, reason: str) -> None:
        if code != ErrorCode.NO_ERROR:
            self._count_useless(BROKEN_COST, reason)
        self._calm(code, reason)
        super()._broken(code, reason)

    def count_failed_handshake(self) -> None:
        self._count_useless(1, "their TLS handshake fails")

    def _count_useless(self, cost: int, reason: str) -> None:
        """Count this connection as useless, once. After too many of them the server pauses their
        address.

        Args:
            cost: 1, or `BROKEN_COST`.
            reason: why it ends, for the log.
        """
        if not self._is_useless:
            self._is_useless = True
            if self.server.count_useless(self, cost):
                many = f"many connections end like this one: {reason}"
                self._calm(ErrorCode.ENHANCE_YOUR_CALM, many)

    def close(
        self, code: int = ErrorCode.NO_ERROR, reason: str = "the connection is closed"
    ) -> None:
        self._calm(code, reason)
        super().close(code, reason)

    def _calm(self, code: int, reason: str) -> None:
        """Start the pause of the address if a budget was exceeded, by the count of the server, the
        session or the address."""
        if code == ErrorCode.ENHANCE_YOUR_CALM and not self._is_calmed:
            self._is_calmed = True
            self.server.calm(self, reason)

    # The end.

    def _fail_streams(self, code: int, reason: str) -> None:
        calls = list(self.streams.values())
        self.streams.clear()
        for call in calls:
            call.connection_closed()
        if calls:
            EndedCalls(self.address, calls, code, reason).next_turn()

    def leave(self, *, at_once: bool = True) -> None:
        """Accept no further calls; the connection closes after its last call.

        Args:
            at_once: False: send GOAWAY twice, half a second apart; calls that the peer starts in
                between are still answered.
        """
        if self.is_leaving or self.is_lost or self.is_closing or self.transport is None:
            return
        self.session.leave(at_once)
        self.wrote()
        if at_once:
            self.is_leaving = True
            self.stream_over()
        else:
            self.loop.call_later(LEAVE_SECONDS, self.leave)

    def stream_over(self) -> None:
        if self.is_leaving and not (self.has_calls or self._is_in_turn):
            self.flush()
            if not self.has_calls:
                self.close()
        if self.server.is_stopping:
            self.server.look_quiet()

    def next_turn(self) -> None:
        is_ended = self.is_lost or self.is_closing or self.transport.is_closing()
        if is_ended or not self._is_reset():
            super().next_turn()
            return
        self._is_in_line = False
        self.transport.abort()

    def _is_reset(self) -> bool:
        """Return whether the peer has reset the connection. A transport that does not read does not
        report it, and would pass on all input that arrived before."""
        now = self.loop.time()
        if now >= self._probe_at:
            self._probe_at = now + PROBE_SECONDS
            # Completes the last frame, unless the transport is full.
            self.flush()
            if not (self.is_choked or self.is_closing):
                self.transport.write(PROBE)
        accepted = self.transport.get_extra_info("socket")
        return bool(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.is_leaving:
            self.stream_over()

    def _close_transport(self) -> None:
        """Close the connection in two steps. If a socket is closed while it has unread input, its
        last output, for example a reply, is lost. So the server first sends the end of its output,
        and reads until the client has sent the end of its output."""
        transport = self.transport
        if transport.can_write_eof() and not transport.is_closing():
            # The peer may have ended the connection.
            with contextlib.suppress(OSError):
                transport.resume_reading()
                transport.write_eof()
                self.loop.call_later(CLOSE_SECONDS_MAX, transport.close)
                return
        transport.close()


def certificate_context(connection: ssl.SSLObject | None) -> Mapping[str, list[bytes]]:
    """Return the `auth_context` for a caller's certificate; empty if the caller sent none.

    Args:
        connection: the TLS connection; None for a plain connection.
    """
    certificate = None if connection is None else connection.getpeercert()
    if not certificate or connection is None:
        return {}
    der = connection.getpeercert(binary_form=True)
    assert der is not None
    subject: Any = certificate.get("subject", ())
    alternatives: Any = certificate.get("subjectAltName", ())
    return {
        "x509_pem_cert": [ssl.DER_cert_to_PEM_cert(der).encode()],
        "x509_common_name": [
            value.encode() for part in subject for name, value in part if name == "commonName"
        ],
        "peer_dns": [value.encode() for kind, value in alternatives if kind == "DNS"],
    }
