"""All dashboards. Every metric on them is one of docs/operate/observability.md."""

from tools.dashboards.broker_page import BROKERS
from tools.dashboards.cluster_page import ALL_OF_IT
from tools.dashboards.gateway_page import GATEWAYS
from tools.dashboards.group_page import GROUPS
from tools.dashboards.offset_page import OFFSETS
from tools.dashboards.spark_page import JOBS

DASHBOARDS = (ALL_OF_IT, BROKERS, GROUPS, OFFSETS, GATEWAYS, JOBS)
