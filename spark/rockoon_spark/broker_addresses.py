"""Addresses of a cluster's brokers, and existence of topics and queues, as its nameservers report
them.
"""

from collections.abc import Collection

import rockoon
import rockoon.sync
from rockoon.admin.which_brokers import live_brokers, missing_brokers
from rockoon.errors import RockoonError
from rockoon_format.names import is_system_topic
from rockoon_spark.records.selection import QueueKey


def broker_addresses(endpoint: str) -> tuple[dict[str, str], dict[str, RockoonError]]:
    """Return the addresses of the brokers in the routes, and the failure of each missing broker.

    Args:
        endpoint: addresses of the nameservers, in the form of `rockoon.connect`.

    Raises:
        RockoonError: no nameserver answers.
    """
    with rockoon.sync.connect(endpoint) as cluster:
        connection = cluster.asyncio
        failures: dict[str, RockoonError] = dict(cluster.call(missing_brokers(connection)))
        addresses, unreachable = cluster.call(_addresses(connection))
    return addresses, failures | unreachable


def live_addresses(endpoint: str) -> dict[str, str]:
    """Return the addresses of the brokers in the routes, without a search for missing brokers.

    Args:
        endpoint: addresses of the nameservers, in the form of `rockoon.connect`.

    Raises:
        RockoonError: no nameserver answers, or a broker cannot be reached from here.
    """
    with rockoon.sync.connect(endpoint) as cluster:
        addresses, unreachable = cluster.call(_addresses(cluster.asyncio))
    for failure in unreachable.values():
        raise failure
    return addresses


def address_now(endpoint: str, broker: str, seconds_max: float) -> str | None:
    """Return the current address of a broker; None if it cannot be found.

    Args:
        endpoint: addresses of the nameservers, in the form of `rockoon.connect`.
        broker: its name.
        seconds_max: time limit for the connection to the nameservers.
    """
    try:
        with rockoon.sync.connect(endpoint, connect_seconds_max=seconds_max) as cluster:
            return cluster.call(_addresses(cluster.asyncio))[0].get(broker)
    except RockoonError:
        return None


def absent_topics(endpoint: str, topics: Collection[str]) -> list[str]:
    """Return the given topics that do not exist, sorted. Internal topics are not checked.

    Args:
        endpoint: addresses of the nameservers, in the form of `rockoon.connect`.

    Raises:
        RockoonError: no nameserver answers.
    """
    with rockoon.sync.connect(endpoint) as cluster:
        listed = cluster.call(cluster.asyncio.admin.list_topics(include_system=True))
    absent = set(topics).difference(route.name for route in listed)
    return sorted(name for name in absent if not is_system_topic(name))


def absent_queues(endpoint: str, queues: Collection[QueueKey]) -> list[QueueKey]:
    """Return the given queues that do not exist, sorted. Internal topics are not checked.

    Args:
        endpoint: addresses of the nameservers, in the form of `rockoon.connect`.

    Raises:
        RockoonError: no nameserver answers.
    """
    with rockoon.sync.connect(endpoint) as cluster:
        listed = cluster.call(cluster.asyncio.admin.list_topics(include_system=True))
    known = {(each.topic, each.broker, each.queue_id) for route in listed for each in route.queues}
    known |= {(topic, "", number) for topic, _, number in known}
    return sorted(each for each in queues if each not in known and not is_system_topic(each[0]))


async def _addresses(
    connection: rockoon.Cluster,
) -> tuple[dict[str, str], dict[str, RockoonError]]:
    # A coroutine, because only the event loop's thread may read and change routes.
    addresses: dict[str, str] = {}
    unreachable: dict[str, RockoonError] = {}
    for name in live_brokers(connection):
        try:
            addresses[name] = connection.broker_address(name)
        except RockoonError as error:
            unreachable[name] = error
    return addresses, unreachable
