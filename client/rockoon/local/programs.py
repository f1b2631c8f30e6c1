"""Programs of the services: their modules and command line flags."""

import importlib.util
from collections.abc import Mapping

from rockoon.local.process import LocalClusterError, NodeKind

MODULES = {
    NodeKind.NAMESERVER: "rockoon_nameserver",
    NodeKind.BROKER: "rockoon_broker",
    NodeKind.OFFSET: "rockoon_offset",
    NodeKind.GATEWAY: "rockoon_gateway",
}


def flag_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(str(part) for part in value)
    return str(value)


def flags(values: Mapping[str, object]) -> list[str]:
    """Return the command line flags for settings of a service."""
    return [f"--{name.replace('_', '-')}={flag_text(value)}" for name, value in values.items()]


def require_services(*, gateway: bool) -> None:
    """Raises LocalClusterError if a program is missing; `gateway` includes the gateway's."""
    wanted = [name for kind, name in MODULES.items() if gateway or kind is not NodeKind.GATEWAY]
    missing = [module for module in wanted if importlib.util.find_spec(module) is None]
    if missing:
        raise LocalClusterError(
            f"{', '.join(missing)} is not installed here: `pip install 'rockoon[local]'`"
        )
