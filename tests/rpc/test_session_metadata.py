"""Sessions of servers: the bound of the metadata of all open calls."""

from typing import Any

import pytest

from rockoon_rpc import session as events
from rockoon_rpc.limits import Limits
from rockoon_rpc.session import ErrorCode
from support import http2_frames as wire
from support.session_pairs import IMPLEMENTATIONS, ONE, RawClient, of_kind, request, whole_request

each = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)

# With its name and 32 bytes for the header: 1,000 bytes.
EXTRA = (("x-note", "n" * (1_000 - 32 - len("x-note"))),)
LIMITS = Limits(metadata_bytes_max=3_000)


def refused(client: RawClient) -> list[int]:
    """Streams that the session has reset with REFUSED_STREAM."""
    resets = [frame for frame in client.frames if frame.type == wire.RST_STREAM]
    return [each.stream_id for each in resets if each.error_code == ErrorCode.REFUSED_STREAM]


@each
def test_a_call_beyond_the_bound_is_refused_until_another_is_over(implementation: Any) -> None:
    client = RawClient(implementation, LIMITS)
    for stream in (1, 3, 5, 7):
        client.send(request(stream, extra=EXTRA))
    assert refused(client) == [7]
    client.send(wire.rst_stream(1))
    client.send(request(9, extra=EXTRA))
    assert refused(client) == [7]
    # An answered call is over, too.
    found = client.send(wire.data(3, wire.framed(b"request"), end=True))
    assert [event[1] for event in of_kind(found, events.CALL)] == [3]
    client.session.respond(3, b"answer")
    client.send(request(11, extra=EXTRA))
    assert refused(client) == [7]


@each
def test_headers_that_are_not_kept_do_not_count(implementation: Any) -> None:
    client = RawClient(implementation, LIMITS, kept=frozenset(("x-other",)))
    for stream in range(1, 21, 2):
        client.send(request(stream, path=ONE, extra=EXTRA))
    assert refused(client) == []
    assert client.session.open_streams == 10
    found = client.send(whole_request(21, extra=EXTRA))
    assert of_kind(found, events.CALL)[0][3] == ()
