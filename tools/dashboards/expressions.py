"""PromQL expressions of the dashboards."""

from collections.abc import Sequence

from tools.dashboards.panels import Query

# What each expression is about: the cluster chosen, and the node or group on pages that have them.
CLUSTER = 'cluster=~"$cluster"'
NODE = f'{CLUSTER}, node_id=~"$node_id"'
BROKER = f'{NODE}, node_type="broker"'
GATEWAY = f'{NODE}, node_type="gateway"'
OFFSET = f'{NODE}, node_type="offset"'
GROUP = f'{CLUSTER}, consumer_group=~"$consumer_group"'


def rate(metric: str, chosen: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{chosen}}}[$__rate_interval]))"


def last(metric: str, chosen: str, by: str, how: str = "sum") -> str:
    return f"{how} by ({by}) ({metric}{{{chosen}}})"


def quantile(share: float, metric: str, chosen: str, by: str) -> str:
    spread = rate(f"{metric}_bucket", chosen, f"le, {by}")
    return f"histogram_quantile({share}, {spread})"


def quantiles(metric: str, chosen: str, by: str, legend: str) -> Sequence[Query]:
    return [
        Query(quantile(share, metric, chosen, by), f"{legend} p{round(share * 100)}")
        for share in (0.5, 0.99)
    ]


def mean(seconds: str, count: str, chosen: str, by: str) -> str:
    return f"{rate(seconds, chosen, by)} / {rate(count, chosen, by)}"
