"""Content of a directory after a power cut, from a record of all operations on it. Pure, except
that it reads the directory at the beginning and writes the resulting one.

preload.c writes the record, with the same layout:

    | magic u32 | kind u32 | time_ns u64 | inode u64 | at u64 | path bytes u32 | data bytes u32 |
    | path | data |

The model is that of a page cache above a disk without barriers of its own:

- A write changes pages in memory and marks them dirty; a sync writes the pages that are dirty at
its
  start to the disk.
- A failed sync leaves its pages in memory, clean, and not on the disk: readers get the written
bytes,
  no later sync writes them, and after the power cut the former bytes are there.
- A name is created, changed or removed on the disk only by a sync of its directory; a rename is one
  step.

A strict cut leaves exactly this. A lenient cut also leaves some unsynced changes: single sectors of
512 bytes, and the first few changes of names.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct("<IIQQQII")
MAGIC = 0x544C4146
PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Kind(IntEnum):
    """Kind of an operation."""

    CREATE = 1
    WRITE = 2
    SIZE = 3
    GROW = 4
    SYNC_BEGIN = 5
    SYNC_END = 6
    SYNC_FAILED = 7
    DIR_SYNC = 8
    RENAME = 9
    UNLINK = 10
    MKDIR = 11


class Deed(NamedTuple):
    """One record."""

    kind: Kind
    time_ns: int
    """On the machine's monotonic clock."""
    inode: int
    at: int
    """Position of the write; the new size."""
    path: str
    data: bytes


def read_deeds(raw: bytes) -> Iterator[Deed]:
    """Return the complete records of a journal; a killed process may leave a partial one."""
    at = 0
    while at + HEAD.size <= len(raw):
        magic, kind, time_ns, inode, place, path_bytes, data_bytes = HEAD.unpack_from(raw, at)
        assert magic == MAGIC, f"no record at byte {at}"
        middle = at + HEAD.size + path_bytes
        end = middle + data_bytes
        if end > len(raw):
            return
        path = raw[at + HEAD.size : middle].decode()
        yield Deed(Kind(kind), time_ns, inode, place, path, raw[middle:end])
        at = end


@dataclass(eq=False)
class File:
    """A file's pages, for programs and on the disk."""

    cached: bytearray = field(default_factory=bytearray)
    stored: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    """Pages that a sync would write."""
    syncing: list[tuple[int, dict[int, bytes]]] = field(default_factory=list)
    """The size and the dirty pages at the start of each running sync."""

    def resize(self, size: int) -> None:
        if size < len(self.cached):
            del self.cached[size:]
            self.dirty = {page for page in self.dirty if page * PAGE_BYTES < size}
        else:
            self.cached.extend(bytes(size - len(self.cached)))

    def write(self, at: int, data: bytes) -> None:
        end = at + len(data)
        self.resize(max(end, len(self.cached)))
        self.cached[at:end] = data
        self.dirty.update(range(at // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def begin_sync(self) -> None:
        pages = {page: bytes(self.page(page)) for page in self.dirty}
        self.syncing.append((len(self.cached), pages))

    def end_sync(self, failed: bool) -> None:
        size, pages = self.syncing.pop(0)
        for page, content in pages.items():
            # Dirty again, if it was written in the meantime.
            if self.page(page) == content:
                self.dirty.discard(page)
        if failed:
            return
        self._store_size(size)
        for page, content in pages.items():
            at = page * PAGE_BYTES
            self.stored[at : at + len(content)] = content
        del self.stored[size:]

    def _store_size(self, size: int) -> None:
        del self.stored[size:]
        self.stored.extend(bytes(size - len(self.stored)))

    def page(self, page: int) -> bytearray:
        return self.cached[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]

    def left(self, chance: random.Random | None) -> bytes:
        """Return the content after a cut; without `chance`, a strict one."""
        if chance is None:
            return bytes(self.stored)
        share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        size = chance.choice((len(self.stored), len(self.cached)))
        kept = bytearray(self.stored[:size].ljust(size, b"\0"))
        for page in sorted(self.dirty):
            for at in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SECTOR_BYTES):
                end = min(at + SECTOR_BYTES, size, len(self.cached))
                if at < end and chance.random() < share:
                    kept[at:end] = self.cached[at:end]
        return bytes(kept)


@dataclass(eq=False)
class Directory:
    """Names, for programs and on the disk."""

    cached: dict[str, "Node"] = field(default_factory=dict)
    stored: dict[str, "Node"] = field(default_factory=dict)


Node = File | Directory


class Renaming(NamedTuple):
    """A change of names that is not on the disk yet; it gets there in one step."""

    changes: tuple[tuple[Directory, str, Node | None], ...]

    def store(self) -> None:
        for directory, name, node in self.changes:
            if node is None:
                directory.stored.pop(name, None)
            else:
                directory.stored[name] = node


class DiskModel:
    """A directory and its content on the disk.

    Args:
        root: its current content counts as stored. It is read before the recorded process starts.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[int, File] = {}
        self._pending: list[Renaming] = []
        self.top = self._load(root)
        self.failed_syncs = 0

    def _load(self, path: Path) -> Directory:
        made = Directory()
        for child in path.iterdir():
            if child.is_dir():
                node: Node = self._load(child)
            else:
                content = child.read_bytes()
                node = File(bytearray(content), bytearray(content))
                self._files[child.stat().st_ino] = node
            made.cached[child.name] = made.stored[child.name] = node
        return made

    def apply(self, deed: Deed) -> None:
        """Apply an operation."""
        if deed.kind is Kind.CREATE:
            file = self._files[deed.inode] = File()
            self._change((deed.path, file))
        elif deed.kind is Kind.MKDIR:
            self._change((deed.path, Directory()))
        elif deed.kind is Kind.UNLINK:
            self._change((deed.path, None))
        elif deed.kind is Kind.RENAME:
            source, target = deed.path.split("\0")
            directory, name = self._place(source)
            self._change((source, None), (target, directory.cached[name]))
        elif deed.kind is Kind.DIR_SYNC:
            self._sync_names(deed.path)
        else:
            self._apply_to_file(deed, self._files[deed.inode])

    def _apply_to_file(self, deed: Deed, file: File) -> None:
        if deed.kind is Kind.WRITE:
            file.write(deed.at, deed.data)
        elif deed.kind is Kind.SIZE:
            file.resize(deed.at)
        elif deed.kind is Kind.GROW:
            file.resize(max(deed.at, len(file.cached)))
        elif deed.kind is Kind.SYNC_BEGIN:
            file.begin_sync()
        else:
            self.failed_syncs += deed.kind is Kind.SYNC_FAILED
            file.end_sync(deed.kind is Kind.SYNC_FAILED)

    def _place(self, path: str) -> tuple[Directory, str]:
        *parents, name = Path(path).relative_to(self._root).parts
        directory = self.top
        for parent in parents:
            below = directory.cached[parent]
            assert isinstance(below, Directory)
            directory = below
        return directory, name

    def _change(self, *named: tuple[str, Node | None]) -> None:
        changes = []
        for path, node in named:
            directory, name = self._place(path)
            changes.append((directory, name, node))
            if node is None:
                directory.cached.pop(name, None)
            else:
                directory.cached[name] = node
        self._pending.append(Renaming(tuple(changes)))

    def _sync_names(self, path: str) -> None:
        if Path(path) == self._root:
            synced: Node = self.top
        else:
            directory, name = self._place(path)
            synced = directory.cached[name]
        left = []
        for pending in self._pending:
            if any(directory is synced for directory, _, _ in pending.changes):
                pending.store()
            else:
                left.append(pending)
        self._pending = left

    def cut(self, target: Path, chance: random.Random | None = None) -> None:
        """Write the content after a power cut at this moment. A lenient cut ends the model.

        Args:
            target: a directory that does not exist yet.
            chance: chooses the unsynced changes that remain; None: none of them.
        """
        if chance is not None:
            for pending in self._pending[: chance.randint(0, len(self._pending))]:
                pending.store()
        _write(self.top, target, chance)


def _write(directory: Directory, target: Path, chance: random.Random | None) -> None:
    target.mkdir()
    for name, node in directory.stored.items():
        if isinstance(node, Directory):
            _write(node, target / name, chance)
        else:
            (target / name).write_bytes(node.left(chance))
