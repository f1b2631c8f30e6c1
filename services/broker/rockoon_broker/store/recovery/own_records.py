"""Records of the log's own topic, collected by the recovery scan after the boundary."""

from pathlib import Path

import numpy as np

from rockoon_broker.store.errors import StoreDamaged
from rockoon_broker.store.log.epochs import Mark, Renewal, mark_of, renewals_among
from rockoon_broker.store.log.scan import Chunk
from rockoon_core.disk import Disk
from rockoon_format.file_names import offset_to_file_name
from rockoon_format.log_marks import LOG_TOPIC

_TOPIC = LOG_TOPIC.encode()


class OwnRecords:
    """Own records found so far, in log order.

    Args:
        directory: the CommitLog directory.
        file_bytes: size of each file.

    Attributes:
        offsets: physical offsets of all of them.
        renewals: the renewals among them.
    """

    def __init__(self, directory: Path, file_bytes: int, disk: Disk) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._disk = disk
        self.offsets: list[int] = []
        self.renewals: list[Renewal] = []

    def add(self, chunk: Chunk) -> list[Renewal]:
        """Add the own records of a chunk; return its renewals.

        Raises:
            StoreDamaged: a record cannot be decoded.
            OSError: the disk.
        """
        offsets = chunk.offsets_of(_TOPIC)
        if not offsets:
            return []
        self.offsets += offsets
        records = chunk.records
        positions = [offset - chunk.base for offset in offsets]
        sizes = records.sizes[np.searchsorted(records.offsets, positions)].tolist()
        found_at = [
            (position, self._mark_at(offset, size))
            for position, offset, size in zip(positions, offsets, sizes, strict=True)
        ]
        marks = [(position, mark) for position, mark in found_at if mark is not None]
        found = renewals_among(marks, records, chunk.base)
        self.renewals += found
        return found

    def _mark_at(self, offset: int, size: int) -> Mark | None:
        position = offset % self._file_bytes
        path = self._directory / offset_to_file_name(offset - position)
        fd = self._disk.open_reading(path)
        try:
            return mark_of(self._disk.pread(fd, size, position))
        except ValueError as error:
            raise StoreDamaged(path, position, f"a record of {LOG_TOPIC}: {error}") from error
        finally:
            self._disk.close(fd)
