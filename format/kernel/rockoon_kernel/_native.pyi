INTERFACE: int

def check_batch(
    frames: bytes,
    sizes: bytes,
    topic: bytes,
    queue_id: int,
    body_bytes_max: int,
    properties_bytes_max: int,
    record_bytes_max: int,
    sys_flags_allowed: int,
    sources_allowed: bool,
) -> bytearray | None: ...
def stamp_batch(
    frames: bytes,
    codes: bytes,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> tuple[bytes, bytes]: ...
