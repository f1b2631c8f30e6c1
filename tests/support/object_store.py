"""An export's directory as object stores have it: no locks, and a move copies before it deletes."""

from functools import cached_property
from pathlib import Path

import pyarrow.fs as pafs

from rockoon_spark.export.target import ExportTarget


class ObjectStore(ExportTarget):
    """A directory of this machine that several processes share, without locks and renames."""

    @classmethod
    def at(cls, directory: Path) -> "ObjectStore":
        return cls(str(directory))

    @cached_property
    def _location(self) -> tuple[pafs.FileSystem, str]:
        # Of another class than the file system of this machine: no lock, no sync.
        return pafs.SubTreeFileSystem(self.uri, pafs.LocalFileSystem()), ""

    def move(self, source: str, target: str) -> None:
        self.write(target, self.read(source))
        self.remove(source)
