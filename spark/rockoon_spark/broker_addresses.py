"""Broker addresses, topics and queues, asked of a cluster's nameservers."""

from collections.abc import Collection

import rockoon
import rockoon.sync
from rockoon.admin.which_brokers import away, live_brokers
from rockoon.errors import RockoonError
from rockoon_format.names import is_system_topic
from rockoon_spark.records.selection import QueueKey


def broker_addresses(endpoint: str) -> tuple[dict[str, str], dict[str, RockoonError]]:
    """Addresses of the brokers in the routes, and what is wrong with others there should be.

    Args:
        endpoint: the nameservers, as `rockoon.connect` takes them.

    Raises:
        RockoonError: no nameserver answers.
    """
    with rockoon.sync.connect(endpoint) as cluster:
        connection = cluster.asyncio
        failures: dict[str, RockoonError] = dict(cluster.call(away(connection)))
        addresses, unreachable = cluster.call(_addresses(connection))
    return addresses, failures | unreachable


def live_addresses(endpoint: str) -> dict[str, str]:
    """Addresses of the brokers in the routes; nothing is asked about others.

    Args:
        endpoint: the nameservers, as `rockoon.connect` takes them.

    Raises:
        RockoonError: no nameserver answers, or a broker cannot be reached from here.
    """
    with rockoon.sync.connect(endpoint) as cluster:
        addresses, unreachable = cluster.call(_addresses(cluster.asyncio))
    for failure in unreachable.values():
        raise failure
    return addresses


def address_now(endpoint: str, broker: str, seconds_max: float) -> str | None:
    """Where a broker is by now; None if that cannot be told.

    Args:
        endpoint: the nameservers, as `rockoon.connect` takes them.
        broker: its name.
        seconds_max: how long to try.
    """
    try:
        with rockoon.sync.connect(endpoint, connect_seconds_max=seconds_max) as cluster:
            return cluster.call(_addresses(cluster.asyncio))[0].get(broker)
    except RockoonError:
        return None


def absent_topics(endpoint: str, topics: Collection[str]) -> list[str]:
    """Those of some topics that do not exist, sorted. Brokers' own are not looked for.

    Args:
        endpoint: the nameservers, as `rockoon.connect` takes them.

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
    # A coroutine, so that routes are read in the loop's thread, where they change.
    addresses: dict[str, str] = {}
    unreachable: dict[str, RockoonError] = {}
    for name in live_brokers(connection):
        try:
            addresses[name] = connection.broker_address(name)
        except RockoonError as error:
            unreachable[name] = error
    return addresses, unreachable
