"""The pytest plugin.

    def test_orders_are_billed(rockoon_cluster, rockoon_topic):
        with rockoon_cluster.connect() as cluster:
            cluster.send(rockoon_topic, b"order 1")

    async def test_orders_are_billed(rockoon_cluster, rockoon_topic):
        async with rockoon_cluster.connect() as cluster:
            ...

The pytest settings `rockoon_brokers` and `rockoon_nameservers` set the size of the cluster.
With `rockoon_single = true` the cluster is one process, which starts faster and needs no etcd.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rockoon.testing.disposable import DisposableCluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("rockoon_brokers", "brokers of the rockoon_cluster fixture", default="1")
    parser.addini("rockoon_nameservers", "nameservers of the rockoon_cluster fixture", default="1")
    parser.addini(
        "rockoon_single", "run the cluster as one process, without etcd", type="bool", default=False
    )


@pytest.fixture(scope="session")
def rockoon_cluster(request: pytest.FixtureRequest) -> "Iterator[DisposableCluster]":
    """A whole cluster on free ports for the session; its data is deleted at the end."""
    from rockoon.testing.disposable import DisposableCluster

    with DisposableCluster(
        nameservers=int(request.config.getini("rockoon_nameservers")),
        brokers=int(request.config.getini("rockoon_brokers")),
        single=bool(request.config.getini("rockoon_single")),
    ) as cluster:
        yield cluster
        fail_for_ends(cluster)


@pytest.fixture
def rockoon_topic(
    request: pytest.FixtureRequest, rockoon_cluster: "DisposableCluster"
) -> Iterator[str]:
    """The name of a new topic for the test. Nodes stopped by an earlier test are started again.

    A node that ended without a stop or kill through the cluster fails the test.
    """
    rockoon_cluster.start_stopped()
    yield rockoon_cluster.new_topic(request.node.name)
    fail_for_ends(rockoon_cluster)


def fail_for_ends(cluster: "DisposableCluster") -> None:
    ended = cluster.wait_node_ended(0)
    if ended is not None:
        pytest.fail(str(ended), pytrace=False)
