"""Damages of a file by a crash, a bad disk or a mistake of an operator."""

import random
from pathlib import Path


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_byte_longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(path.stat().st_size))


def missing(path: Path) -> None:
    path.unlink()


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "somebody's").write_bytes(b"file")
