"""Errors of the store, as exceptions of this process.

The broker converts those that reach a client to errors of `rockoon_core.errors`.
"""

from pathlib import Path


class StorageError(Exception):
    """Base class of all errors of the store."""


class StoreInUse(StorageError):
    """Another process, or another `Store` of this process, has the directory open."""


class StoreLayoutError(StorageError):
    """Files in the directory do not fit this configuration; nothing was changed."""


class UnexpectedFile(StoreLayoutError):
    """A file in a directory of fixed-size files has a foreign name or a wrong size.

    `path` names it; `found_bytes` and `expected_bytes` are None if the name is wrong.
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


class StoreDamaged(StorageError):
    """Durable bytes have changed.

    If raised at a start, nothing was changed. `path` and `position` locate the damaged byte.
    """

    def __init__(self, path: Path, position: int, reason: str) -> None:
        self.path = path
        self.position = position
        self.reason = f"at byte {position}: {reason}"
        super().__init__(f"{path} is damaged: {self.reason}")


class MarkDamaged(StoreDamaged):
    """A record with an epoch mark or a topic change is damaged.

    Attributes:
        physical_offset: start of the record.
    """

    def __init__(self, path: Path, position: int, reason: str, physical_offset: int) -> None:
        self.physical_offset = physical_offset
        super().__init__(path, position, reason)


class StoreSyncFailed(StorageError):
    """A sync failed, so that the content of the disk is unknown.

    The store refuses all further calls. The owner must end the process; the next
    start recovers from the disk's actual content.
    """


class StoreClosed(StorageError):
    """The store was closed."""


class AppendRefused(StorageError):
    """The store refuses appends for now; reads work. The message has the reason and figures."""


class StoreBusy(StorageError):
    """Too many bytes wait to be committed; the caller may retry after the next commit."""


class AppendFailed(StorageError):
    """The disk refused a write (no space, I/O error): no offset was used, the end did not move."""

    def __init__(self, message: str, errno: int | None) -> None:
        self.errno = errno
        super().__init__(message)


class BatchTooLarge(StorageError):
    """A batch does not fit into an empty CommitLog file."""


class UnknownOffset(StorageError):
    """No valid record starts at the requested physical offset."""


class UnstorableTopic(StorageError):
    """The topic's name is not a valid directory name."""
