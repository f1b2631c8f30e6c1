"""A scan of the log, as recovery does it."""

from pathlib import Path

import pytest

from rockoon_broker.store.log.scan import LogScan
from rockoon_core.disk import Disk
from rockoon_format.batch import ScanEnd, encode_batch

FILE_BYTES = 16 << 20
HOST = b"\x7f\x00\x00\x01" + (10911).to_bytes(4)


class CountingDisk(Disk):
    """Counts the bytes read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def pread(self, fd: int, count: int, position: int) -> bytes:
        data = super().pread(fd, count, position)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize(
    "body_bytes", [0, 20, 100, 1000, 3 << 20], ids=lambda size: f"{size}-bytes"
)
def test_whatever_the_records_sizes_hardly_a_byte_is_read_twice(
    body_bytes: int, tmp_path: Path
) -> None:
    record = encode_batch(b"T", 0, [bytes(body_bytes)], [b""], 0, HOST)[0]
    count = (FILE_BYTES - 8) // len(record)
    (tmp_path / "00000000000000000000").write_bytes(
        (record * count).ljust(FILE_BYTES, b"\0"),
    )
    disk = CountingDisk()
    walk = LogScan(tmp_path, FILE_BYTES, [0], disk)
    records = sum(chunk.records.count for chunk in walk.chunks(0))
    assert (records, walk.end, walk.stopped_by) == (count, count * len(record), ScanEnd.ZERO)
    assert disk.read_bytes < 1.5 * FILE_BYTES
