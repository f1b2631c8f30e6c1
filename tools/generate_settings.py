"""Write deploy/settings/*.toml with all settings of each service, or check that it is current."""

import argparse
import dataclasses
import textwrap
from pathlib import Path

from rockoon_broker.settings import BrokerSettings
from rockoon_gateway.settings import GatewaySettings
from rockoon_nameserver.settings import NameserverSettings
from rockoon_offset.settings import OffsetSettings
from rockoon_runtime.settings import toml_text

ROOT = Path(__file__).resolve().parent.parent / "deploy/settings"
SERVICES: dict[str, type] = {
    "nameserver": NameserverSettings,
    "broker": BrokerSettings,
    "offset": OffsetSettings,
    "gateway": GatewaySettings,
}
HEAD = """\
# Every setting of rockoon-{service}, with its default. Set other values in a file like this
# (--config), in the environment ({variable}...) or as options (--listen ...).
# `rockoon-{service} --print-settings` shows the values in use and their sources.
"""
WIDTH = 100


def example(service: str) -> str:
    """A TOML file with the defaults of all settings of a service."""
    variable = f"ROCKOON_{service.upper()}_"
    parts = [HEAD.format(service=service, variable=variable)]
    for field in dataclasses.fields(SERVICES[service]):
        doc = textwrap.wrap(
            field.metadata["doc"], WIDTH, initial_indent="# ", subsequent_indent="# "
        )
        line = f"{field.name} = {toml_text(field.default)}"
        if field.metadata["secret"]:
            line = f"# a secret, in the environment only: {variable}{field.name.upper()}"
        elif field.default is None:
            line = f"# {field.name} ="
        parts.append("\n".join([*doc, line, ""]))
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    check = parser.parse_args().check
    stale = []
    for service in SERVICES:
        path = ROOT / f"{service}.toml"
        if check:
            current = path.exists() and path.read_text() == example(service)
            stale += [] if current else [path.name]
        else:
            path.write_text(example(service))
    if stale:
        print("deploy/settings is stale, run `make settings`:", *stale)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
