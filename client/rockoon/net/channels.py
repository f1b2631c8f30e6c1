"""Channel options of the SDK."""

CLUSTER_METADATA_KEY = "rockoon-cluster"

# Batches are up to a few MiB: large frames, so that one is not cut in 16 KiB pieces. Keepalive
# finds peers that vanished without a word. A broker that was restarted is to be found again at
# once, so reconnecting backs off to a second, not to gRPC's two minutes.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    # Also how long anything sent may go unacknowledged (TCP_USER_TIMEOUT): what hangs because the
    # other host has vanished fails then, and goes elsewhere.
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # Every cluster object has its own connections: closing one must not disturb another.
    ("grpc.use_local_subchannel_pool", 1),
)
