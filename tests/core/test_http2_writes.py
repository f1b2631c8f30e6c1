"""What is written together: in its order, without anything kept too long."""

from rockoon_core.http2.sending import HELD_BYTES_MAX, Http2Sending


class RecordedWrites:
    """A transport that notes each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.writes.append(b"".join(pieces))


def sending() -> tuple[Http2Sending, RecordedWrites]:
    found, transport = Http2Sending(), RecordedWrites()
    found.transport = transport
    return found, transport


def test_what_is_held_is_one_write() -> None:
    side, transport = sending()
    side.hold_writes()
    side.hold_writes()
    side._write(b"head")
    side._write(b"message")
    assert transport.writes == []
    side.release_writes()
    assert transport.writes == [b"headmessage"]
    side.release_writes()
    side._write(b"alone")
    assert transport.writes == [b"headmessage", b"alone"]


def test_long_pieces_go_behind_what_is_held() -> None:
    side, transport = sending()
    side.hold_writes()
    side._write(b"head")
    side._write_all([b"long", memoryview(b"pieces")])
    assert transport.writes == [b"head", b"longpieces"]


def test_what_is_held_has_a_bound() -> None:
    side, transport = sending()
    side.hold_writes()
    for _ in range(3):
        side._write(bytes(HELD_BYTES_MAX // 2))
    assert [len(each) for each in transport.writes] == [HELD_BYTES_MAX // 2 * 3]


def test_nothing_is_written_behind_the_end() -> None:
    side, transport = sending()
    side.hold_writes()
    side._write(b"head")
    side.is_lost = True
    side.release_writes()
    assert transport.writes == []
