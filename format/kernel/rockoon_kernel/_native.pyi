from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import Buffer

INTERFACE: int
# A module; `rockoon_rpc.session` has its types.
http2: Any

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
def append_batches(
    batches: list[tuple[bytes, bytes, bytes, int, int, tuple[int, int] | None]],
    body_bytes_max: int,
    properties_bytes_max: int,
    record_bytes_max: int,
    sys_flags_allowed: int,
    with_room: bool,
    with_keys: bool,
    first_physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> tuple[bytes, bytes, list[int], tuple[bytes, bytes] | None]: ...
def append_reply(
    batches: Sequence[tuple[int, tuple[int, int, int, int, int, bytes]]],
) -> bytes | None: ...
def append_request(
    message: bytes,
) -> list[tuple[str, int, tuple[int, int], bytes, int, int]] | None: ...
def appended(message: bytes) -> list[tuple[int, int, int, int, int, bytes]] | None: ...
def pull_answers(
    message: bytes,
) -> list[tuple[int, int, int, int, bytes, tuple[int, int] | None, bytes, int, bool]] | None: ...
def pull_front(
    status: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    frames_bytes: int,
    sizes: bytes,
    subscription_id: int | None,
    ended: bool,
) -> bytes: ...
def stamp_batch(
    frames: bytes,
    codes: bytes,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> tuple[bytes, bytes]: ...
def compare(data: bytes, starts: bytes, sizes: bytes, checksums: bool) -> bytearray | None: ...
def crc32(data: bytes) -> int: ...
def crcs(data: bytes, starts: bytes, lengths: bytes) -> bytearray | None: ...
def encode_batch(
    head: bytes,
    topic: bytes,
    ending: bytes,
    bodies: list[bytes],
    properties: list[bytes],
    flags: bytes | None,
    sys_flags: bytes | None,
    born_ms: bytes | None,
) -> tuple[bytes, bytearray] | None: ...
def encode_messages(
    head: bytes,
    topic: bytes,
    ending: bytes,
    own_head: bytes,
    ids: bytes,
    sequence: bytes,
    bodies: list[bytes],
    extras: dict[int, tuple[bytes, bytes]],
    sys_flags: bytes | None,
    envelope: tuple[int, int, bytes] | None,
) -> tuple[bytes, bytes] | None: ...
def key_hashes(
    data: bytes, starts: bytes, lengths: bytes, fronts: bytes
) -> tuple[bytearray, bytearray] | None: ...
def decode(
    data: bytes, sizes: bytes, start: int, end: int, compared: bool
) -> tuple[bytes, bytes] | None: ...
def locate(data: bytes, starts: bytes) -> tuple[bytearray, bytearray] | None: ...
def matching(
    data: bytes, sizes: bytes, queue_offsets: bytes, topic: bytes, queue_id: int
) -> int: ...
def only_record(
    data: bytes, start: int, end: int, compared: bool
) -> tuple[int, int, bytes, int] | None: ...
def records_to_read(
    entries: bytes,
    log_min: int,
    log_end: int,
    file_bytes: int,
    messages_max: int,
    bytes_max: int,
) -> tuple[bytes, list[tuple[int, int]]] | None: ...
def slices(data: bytes, starts: bytes, lengths: bytes) -> list[bytes] | None: ...
def tags_codes(data: bytes, starts: bytes, lengths: bytes) -> bytearray | None: ...
def scan(
    data: bytes,
    end: int,
    bytes_max: int,
    records_max: int,
    check: bool,
    checksums: bool,
    checksums_from: int | None,
    with_tag_codes: bool,
) -> tuple[bytearray, list[bytes], int, int] | None: ...
def chain(data: bytes, base: int, end: int, stop: int) -> tuple[bytearray, int, int]: ...
def extent(data: bytes, base: int, end: int) -> tuple[int, bool]: ...
def distinct(
    data: bytes, starts: bytes, lengths: bytes
) -> tuple[list[bytes], bytearray] | None: ...
def rooms(data: bytes, ends: bytes, properties_lengths: bytes) -> bytearray | None: ...
def offset_ids(data: bytes, host_starts: bytes, physical_offsets: bytes) -> bytes | None: ...
def sequence_ends(data: bytes, ends: bytes) -> tuple[bytearray, bytearray, bytearray] | None: ...
def queue_runs(
    topics: bytes,
    queues: bytes,
    queue_offsets: bytes,
    physical_offsets: bytes,
    sizes: bytes,
    tag_codes: bytes,
    listed: bytes,
    file_entries: int,
) -> tuple[bytearray, bytes, bytes] | None: ...
def take_bodies(
    source: Iterator[object], messages_max: int, bytes_max: int
) -> tuple[list[Any], int | None]: ...
def unique_keys(front: bytes, counter: int, count: int) -> bytes: ...
def index_keys(data: bytes, stop: int, base: int) -> tuple[bytes, bytes, bytes] | None: ...

class DeliveredAnswers:
    def __init__(self, reserved: list[bytes], prefix: bytes) -> None: ...
    def framed(
        self,
        data: bytes,
        starts: bytes,
        sizes: bytes,
        offsets: bytes,
        topic: bytes,
        broker: bytes,
        queue_id: int,
        attempt: int,
        handle_front: bytes,
        handle_back: bytes,
    ) -> tuple[bytes, list[int], int]: ...

class IndexSlots:
    def __init__(self, count: int) -> None: ...
    def link(
        self,
        first_unit: int,
        first_seconds: int,
        begin_ms: int,
        hashes: bytes,
        offsets: bytes,
        timestamps_ms: bytes,
    ) -> tuple[bytes, int]: ...
    def newest(self, slot: int) -> int: ...
    def stored(self, first: int, count: int) -> bytes: ...
    def load(self, first: int, stored: bytes) -> None: ...
    def compare(self, first: int, stored: bytes) -> None: ...
    def mark_used(self) -> None: ...
    def marks(self) -> bytes: ...
    def unmark(self) -> None: ...

class QueueCutter:
    def __init__(
        self, marks: list[tuple[bytes, int]], others: list[bytes], unlisted: int, file_entries: int
    ) -> None: ...
    def add(self, data: bytes, stop: int, base: int) -> bool: ...
    def taken(self) -> tuple[list[bytes], tuple[bytearray, bytes, bytes]] | None: ...

class Shared(Buffer):
    def __len__(self) -> int: ...

_Text = tuple[Shared, Shared, bool, bytes | None]

class Window:
    @staticmethod
    def following(data: bytes, base: int, end: int) -> Window | None: ...
    @staticmethod
    def at(data: bytes, starts: bytes, sizes: bytes) -> Window | None: ...
    def extent(self) -> tuple[int, int, bool]: ...
    def field(self, number: int) -> bytes: ...
    def topics(self) -> list[bytes]: ...
    def sys_flags(self) -> int: ...
    def columns(
        self, fields: list[int], topics: bool, bodies: bool, names: list[bytes], maps: bool
    ) -> tuple[
        list[Shared],
        _Text | None,
        _Text | None,
        list[_Text],
        tuple[Shared, _Text, _Text] | None,
    ]: ...
    def damaged(self) -> bytes: ...
