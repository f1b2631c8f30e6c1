"""One etcd for all tests here; each test has its own cluster, which is a key prefix."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.etcd import EtcdServer


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Only for tests that neither stop nor compact etcd."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def new_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that is not started."""
    server = EtcdServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that a test may kill, compact and erase."""
    with EtcdServer(tmp_path) as server:
        yield server


@pytest.fixture
def cluster() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"
