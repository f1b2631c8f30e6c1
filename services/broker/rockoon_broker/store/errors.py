"""Errors of the store: what it refuses, and what ends it."""

from pathlib import Path


class StoreError(Exception):
    """Anything the store refuses or cannot do."""


class StoreLocked(StoreError):
    """Another process, or another `Store` of this process, has the directory open."""


class StoreLayoutError(StoreError):
    """The directory holds files that this configuration cannot read; nothing was changed."""


class UnexpectedFile(StoreLayoutError):
    """A file in a directory of fixed-size files has a foreign name or another size.

    `path` names it; `found_bytes` and `expected_bytes` are None where the name is the problem.
    """

    def __init__(
        self, path: Path, reason: str, found_bytes: int | None, expected_bytes: int | None
    ) -> None:
        self.path = path
        self.found_bytes = found_bytes
        self.expected_bytes = expected_bytes
        sizes = "" if found_bytes is None else f": found {found_bytes} bytes, "
        sizes += "" if expected_bytes is None else f"expected {expected_bytes} bytes"
        super().__init__(f"{path}: {reason}{sizes}")


class StoreDamaged(StoreError):
    """Bytes that were durable are not what they were.

    At a start nothing was changed. `path` names the file and `position` the byte in it.
    """

    def __init__(self, path: Path, position: int, reason: str) -> None:
        self.path = path
        self.position = position
        self.reason = f"at byte {position}: {reason}"
        super().__init__(f"{path} is damaged: {self.reason}")


class MarkDamaged(StoreDamaged):
    """A record that says where epochs begin, or which topics the log holds, is damaged.

    Attributes:
        physical_offset: where the record begins.
    """

    def __init__(self, path: Path, position: int, reason: str, physical_offset: int) -> None:
        self.physical_offset = physical_offset
        super().__init__(path, position, reason)


class StoreFailed(StoreError):
    """A sync failed, so what is on the disk is no longer known.

    The store refuses everything from here on. The owner's duty is to end the process: the next
    start recovers from what the disk really holds.
    """


class StoreClosed(StoreError):
    """The store was closed."""


class StoreNotWritable(StoreError):
    """Appends are refused for now; reads go on. The message holds the figures."""


class StoreBusy(StoreError):
    """Too many bytes wait for a sync; the caller may retry when some were confirmed."""


class AppendFailed(StoreError):
    """The disk refused the bytes (no space, I/O error): no offset was used, the end did not move.

    `errno` is the operating system's number.
    """

    def __init__(self, message: str, errno: int | None) -> None:
        self.errno = errno
        super().__init__(message)


class BatchTooLarge(StoreError):
    """A batch does not fit into one CommitLog file, whatever that file holds already."""


class UnknownOffset(StoreError):
    """No valid record starts at the physical offset that was asked for."""


class UnstorableTopic(StoreError):
    """A topic's name cannot be the name of a directory."""
