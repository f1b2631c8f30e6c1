"""One etcd for all tests here; each test has a cluster, that is a key prefix, of its own."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.etcd import EtcdServer


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Only for tests that neither stop it nor compact it."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def new_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Not started."""
    server = EtcdServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """To be killed, compacted and erased at will."""
    with EtcdServer(tmp_path) as server:
        yield server


@pytest.fixture
def cluster() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"
