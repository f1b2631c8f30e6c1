"""Generations for a running broker: made from a copy of its store, and uploaded to it."""

import contextlib
import hashlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from rockoon_core.errors import BrokerUnavailable
from rockoon_core.failed_call import from_rpc_error
from rockoon_format.generation import MANIFEST_FILE, Manifest
from rockoon_proto.v1 import broker_pb2 as pb
from support.broker import RunningBroker
from support.compaction import compact_store
from support.waiting import DEADLINE_SECONDS

PIECE_BYTES = 1000


def made_elsewhere(root: Path, copy: Path, **how: Any) -> Path:
    """Make the next generation of a store in a copy that its broker does not see.

    Args:
        root: the store directory.
        copy: path of the copy; it does not exist yet.
        how: arguments of `compact_store`.

    Returns:
        The generation's directory, in the copy.
    """
    for name in ("commitlog", "config", "compacted"):
        if (root / name).exists():
            shutil.copytree(root / name, copy / name, copy_function=copy_if_there)
    return compact_store(copy, **how)


def copy_if_there(source: str, target: str) -> None:
    """Copy a file if it still exists: a broker may delete a listed file that a compaction
    covers."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


async def put(broker: RunningBroker, upload_id: str, name: str, content: bytes) -> Any:
    """Upload a file in small pieces."""

    async def requests() -> AsyncIterator[pb.PutGenerationFileRequest]:
        first = content[:PIECE_BYTES]
        yield pb.PutGenerationFileRequest(upload_id=upload_id, file_name=name, data=first)
        for at in range(PIECE_BYTES, len(content), PIECE_BYTES):
            yield pb.PutGenerationFileRequest(data=content[at : at + PIECE_BYTES])

    try:
        return await broker.stub.PutGenerationFile(requests(), timeout=DEADLINE_SECONDS)
    except grpc.RpcError as failure:
        raise from_rpc_error(failure, BrokerUnavailable, broker=broker.address) from failure


async def upload(broker: RunningBroker, directory: Path, upload_id: str) -> bytes:
    """Upload a generation's files; return its manifest.json, which `publish` sends."""
    files = contents(directory)
    manifest = files.pop(MANIFEST_FILE)
    for name, content in files.items():
        stored = await put(broker, upload_id, name, content)
        assert stored.file_bytes == len(content)
        assert stored.sha256 == hashlib.sha256(content).digest()
    return manifest


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory by name."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


async def publish(broker: RunningBroker, upload_id: str, manifest: bytes) -> pb.CompactionState:
    request = pb.PublishGenerationRequest(upload_id=upload_id, manifest=manifest)
    reply = await broker.call("PublishGeneration", request)
    state: pb.CompactionState = reply.state
    return state


async def compact_over_the_wire(
    broker: RunningBroker, root: Path, copy: Path, upload_id: str, **how: Any
) -> Manifest:
    """Make the next generation, upload it, and wait until the broker uses it."""
    directory = made_elsewhere(root, copy, **how)
    manifest = await upload(broker, directory, upload_id)
    state = await publish(broker, upload_id, manifest)
    made = Manifest.from_json(manifest)
    assert state.generation == made.generation
    return made
