"""A store of a newer format is refused by name, and nothing in it is changed."""

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rockoon.local import LocalCluster
from rockoon_core.disk import Disk
from rockoon_node.store_directory import STORE_FORMAT
from rockoon_offset.journal import frames
from rockoon_replica import replica_file
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_runtime.process import ExitStatus
from support.run_service import run_service

NOBODY = "--nameservers=127.0.0.1:1"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped cluster: stores of a broker and an offset service, and routes."""
    directory = tmp_path_factory.mktemp("formats") / "cluster"
    with LocalCluster(directory, single=True):
        pass
    return directory


def raise_store(config: Path) -> None:
    assert (config / "format").read_text() == f"{STORE_FORMAT}\n"
    (config / "format").write_text(f"{STORE_FORMAT + 1}\n")


def raise_replica(config: Path) -> None:
    replica_file.ReplicaFile(config, Disk()).write(ReplicaFacts())
    path = config / replica_file.FILE
    told = json.loads(path.read_bytes().partition(b"\n")[0])
    told["format"] += 1
    line = json.dumps(told).encode() + b"\n"
    path.write_bytes(line + b"%08x\n" % zlib.crc32(line))


def raise_journal(store: Path) -> None:
    for path in (store / "journal").glob("*.journal"):
        content = path.read_bytes()
        magic = b"RKOJRNL%d" % (int(frames.MAGIC[-1:]) + 1)
        head = magic + content[len(magic) : frames.FILE_HEADER.size]
        path.write_bytes(head + frames.U32.pack(zlib.crc32(head)) + content[len(head) + 4 :])


def raise_routes(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("UPDATE facts SET value = value + 1 WHERE name = 'layout'")
    database.close()


def content_of(directory: Path) -> Mapping[Path, bytes]:
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


CASES: Mapping[str, tuple[str, Callable[[Path], None], str, str]] = {
    "a broker's store": (
        "broker",
        lambda root: raise_store(root / "broker-a/config"),
        "--store-path={}/broker-a",
        f"the store has format {STORE_FORMAT + 1}",
    ),
    "an offset service's store": (
        "offset",
        lambda root: raise_store(root / "offset"),
        "--store-path={}/offset",
        f"the store has format {STORE_FORMAT + 1}",
    ),
    "the facts of a broker's copy": (
        "broker",
        lambda root: raise_replica(root / "broker-a/config"),
        "--store-path={}/broker-a",
        f"its format is {replica_file.FORMAT + 1}, and this version knows {replica_file.FORMAT}",
    ),
    "the facts of a journal's copy": (
        "offset",
        lambda root: raise_replica(root / "offset"),
        "--store-path={}/offset",
        f"its format is {replica_file.FORMAT + 1}, and this version knows {replica_file.FORMAT}",
    ),
    "a journal": (
        "offset",
        lambda root: raise_journal(root / "offset"),
        "--store-path={}/offset",
        "it is no journal of this format",
    ),
    "the routes in a file": (
        "nameserver",
        lambda root: raise_routes(root / "routes.db"),
        "--routes-path={}/routes.db",
        "its layout is 2, and this version knows 1",
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_newer_format_is_refused_by_name_and_no_byte_is_changed(
    stores: Path, tmp_path: Path, kind: str
) -> None:
    service, raise_format, setting, reason = CASES[kind]
    root = tmp_path / "cluster"
    shutil.copytree(stores, root)
    raise_format(root)
    before = content_of(root)
    nameservers = [NOBODY] if service != "nameserver" else []
    done = run_service(service, "--listen=127.0.0.1:0", setting.format(root), *nameservers)
    assert done.returncode == ExitStatus.STORE, done.stderr
    assert reason in done.stderr
    assert "newer" in done.stderr
    assert "Traceback" not in done.stderr
    assert content_of(root) == before


def test_a_format_that_is_no_number_is_reported(stores: Path, tmp_path: Path) -> None:
    root = tmp_path / "offset"
    shutil.copytree(stores / "offset", root)
    (root / "format").write_text("two\n")
    done = run_service("offset", f"--store-path={root}", NOBODY)
    assert done.returncode == ExitStatus.STORE, done.stderr
    assert f"{root}/format is damaged: it does not hold a number" in done.stderr
