"""The services' programs: whether they are installed, and how they are started."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence

from rockoon.local.process import Kind, LocalClusterError

MODULES = {
    Kind.NAMESERVER: "rockoon_nameserver",
    Kind.BROKER: "rockoon_broker",
    Kind.OFFSET: "rockoon_offset",
}


def service_command(kind: Kind, values: Mapping[str, object]) -> Sequence[str]:
    """Program and arguments of a service.

    Args:
        kind: which one.
        values: of its settings.
    """
    flags = [f"--{name.replace('_', '-')}={flag_text(value)}" for name, value in values.items()]
    return (sys.executable, "-m", MODULES[kind], "--stop-with-parent", *flags)


def flag_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(str(part) for part in value)
    return str(value)


def require_services() -> None:
    missing = [module for module in MODULES.values() if importlib.util.find_spec(module) is None]
    if missing:
        raise LocalClusterError(
            f"{', '.join(missing)} is not installed here: `pip install 'rockoon[local]'`"
        )
