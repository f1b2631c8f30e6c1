"""Limits on the resources that one peer can use; equal for all connections of a server."""

from dataclasses import dataclass

MESSAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one connection.

    Attributes:
        message_bytes_max: size of one message; a longer one ends its call with RESOURCE_EXHAUSTED.
        unfinished_bytes_max: total size of the messages of the connection that have arrived in
            part, and of requests of unary calls that are not complete. The message that exceeds it
            ends its call with RESOURCE_EXHAUSTED.
        header_list_bytes_max: size of the decoded headers of one call, 32 bytes added for each
            (RFC 9113, section 10.5.1).
        metadata_bytes_max: size of the metadata of all open calls of a server's connection, counted
            like headers. A further call is refused with REFUSED_STREAM.
        streams_max: open streams of a server's connection.
        frame_bytes_max: size of one frame that the peer sends.
        stream_window_bytes, connection_window_bytes: DATA that the peer may send before it
            receives a WINDOW_UPDATE.
        turn_bytes: received bytes that are handled in one turn of a connection.
        turn_calls: in one turn, new calls, and calls of earlier turns whose request becomes
            complete.
        unread_bytes_max: size of a stream's messages that the application has not read. Beyond it
            the peer receives no WINDOW_UPDATE for the stream.
        unsent_bytes_max: size of messages that the peer does not read. Beyond it a server reads
            nothing from the peer.
        request_seconds_max: time from the headers of a call with one request to the end of the
            request.
        idle_frames_burst, idle_frames_per_second: frames without effect (PING, SETTINGS, PRIORITY,
            WINDOW_UPDATE, GOAWAY, empty DATA, unknown types) before the connection ends.
        resets_burst, resets_per_second: streams that the peer resets, or that a server resets
            because of the peer, before the connection ends. A stream beyond `streams_max` counts as
            20 resets.
        calm_seconds: if a connection has used up a budget, time for which a server closes new
            connections of its address.
    """

    message_bytes_max: int = MESSAGE_BYTES_MAX
    unfinished_bytes_max: int = 128 << 20
    header_list_bytes_max: int = 16 << 10
    metadata_bytes_max: int = 2 << 20
    streams_max: int = 1_000
    frame_bytes_max: int = 64 << 10
    stream_window_bytes: int = 4 << 20
    connection_window_bytes: int = 16 << 20
    turn_bytes: int = 64 << 10
    turn_calls: int = 64
    unread_bytes_max: int = 4 << 20
    unsent_bytes_max: int = 8 << 20
    request_seconds_max: float = 30.0
    idle_frames_burst: int = 10_000
    idle_frames_per_second: int = 1_000
    resets_burst: int = 20_000
    resets_per_second: int = 2_000
    calm_seconds: float = 5.0
