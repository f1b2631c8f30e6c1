"""One cluster, and catalogues of both kinds, for the tests of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rockoon.testing.disposable import DisposableCluster
from support.lake import Lake
from support.rest_catalog import RestCatalogServer


@pytest.fixture(scope="session")
def cluster() -> Iterator[DisposableCluster]:
    with DisposableCluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(params=["rest", "sqlite"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, rest: RestCatalogServer) -> Lake:
    if request.param == "rest":
        return Lake(rest.uri, {})
    warehouse = (tmp_path / "warehouse").as_uri()
    return Lake(f"sqlite:///{tmp_path}/catalog.db", {"warehouse": warehouse})


@pytest.fixture
def lake_over_http(rest: RestCatalogServer) -> Iterator[Lake]:
    yield Lake(rest.uri, {})
    rest.before_commit = rest.after_commit = lambda _: None
