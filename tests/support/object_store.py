"""An export's directory with the properties of object stores: no locks, and a move copies first."""

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
        # Another class than the local file system, so that no lock and no sync is used.
        return pafs.SubTreeFileSystem(self.uri, pafs.LocalFileSystem()), ""

    def move(self, source: str, target: str) -> None:
        self.write(target, self.read(source))
        self.remove(source)
