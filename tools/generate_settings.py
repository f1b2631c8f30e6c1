"""Write deploy/settings/*.toml with all settings of each service, and the table of live settings in
docs/operate/settings.md, or check that they are current.
"""

import argparse
import dataclasses
import textwrap
from pathlib import Path

from rockoon_broker.settings import BrokerSettings
from rockoon_gateway.settings import GatewaySettings
from rockoon_nameserver.settings import NameserverSettings
from rockoon_offset.settings import OffsetSettings
from rockoon_runtime.live_settings import live_names, unit_of
from rockoon_runtime.settings import toml_text

REPOSITORY = Path(__file__).resolve().parent.parent
ROOT = REPOSITORY / "deploy/settings"
PAGE = REPOSITORY / "docs/operate/settings.md"
# The table is between these lines of the page.
TABLE_BEGIN, TABLE_END = "<!-- live settings -->\n", "<!-- end of live settings -->\n"
# Services that follow live settings.
LIVE_SERVICES = ("broker", "offset", "nameserver", "gateway")
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


def live_table() -> str:
    """A Markdown table of the live settings of all services."""
    services: dict[str, list[str]] = {}
    for service in LIVE_SERVICES:
        for name in live_names(SERVICES[service]):
            services.setdefault(name, []).append(service)
    rows = ["| setting | default | services | meaning |", "|---|---|---|---|"]
    for name, used_by in services.items():
        fields = {each.name: each for each in dataclasses.fields(SERVICES[used_by[0]])}
        field = fields[name]
        default = "" if field.default is None else f"{toml_text(field.default)} {unit_of(name)}"
        doc = field.metadata["doc"].replace("|", "\\|")
        where = "all" if len(used_by) == len(LIVE_SERVICES) else ", ".join(used_by)
        rows.append(f"| `{name}` | {default.strip()} | {where} | {doc} |")
    return "\n".join(rows) + "\n"


def page_with_table(text: str) -> str:
    """The page with the current table."""
    head, _, rest = text.partition(TABLE_BEGIN)
    _, _, tail = rest.partition(TABLE_END)
    return f"{head}{TABLE_BEGIN}{live_table()}{TABLE_END}{tail}"


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
    page = PAGE.read_text()
    if page != page_with_table(page):
        if check:
            stale.append(PAGE.name)
        else:
            PAGE.write_text(page_with_table(page))
    if stale:
        print("settings are stale, run `make settings`:", *stale)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
