"""One etcd for the tests that need one; each test has its own cluster in it."""

import uuid
from collections.abc import Iterator

import pytest

from support.etcd import EtcdServer


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def cluster() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"
