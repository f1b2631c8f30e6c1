"""CommitLog files are reserved in full; a start must not read the reserved part."""

from pathlib import Path

from rockoon_core.disk import Disk
from support.store_directory import Owner, settings

FILE_BYTES = 512 << 20
READ_BYTES_MAX = FILE_BYTES // 2


class CountingDisk(Disk):
    """Counts the bytes read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def pread(self, fd: int, count: int, position: int) -> bytes:
        data = super().pread(fd, count, position)
        self.read_bytes += len(data)
        return data


def test_a_start_reads_what_the_log_holds_and_not_what_is_reserved(tmp_path: Path) -> None:
    configured = settings(
        tmp_path, commit_log_file_bytes=FILE_BYTES, consume_queue_file_entries=300_000
    )
    first = Owner(configured)
    for _ in range(20):
        first.append(bodies=[b"x" * 1000] * 1000)
    first.store.close()
    (tmp_path / "abort").touch()
    (tmp_path / "recoveryPoint").unlink()

    disk = CountingDisk()
    second = Owner(configured, disk)
    assert second.store.max_offset("T", 0) == 20_000
    # A read-ahead puts the reserved part into the page cache as zeros. A reader that takes cached
    # pages for data would follow its own read-ahead to the file's end.
    assert disk.read_bytes < READ_BYTES_MAX
    second.store.close()
