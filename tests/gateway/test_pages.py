"""Commands and programs on the pages about gateways are accepted as written.

`make conformance` runs the programs of docs/use/gateway-clients.md, tests/conformance its Python
program, and `make spring` the application of docs/use/gateway-spring.md; tests/deploy checks the
trigger of docs/operate/scaling.md against the manifests.
"""

import ast
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.wire_client import WireClient, message
from rockoon.cli.app import run_command_line
from rockoon.local.cluster import LocalCluster
from rockoon.local.directory import choose_port
from rockoon_gateway.settings import GatewaySettings
from rockoon_offset.settings import OffsetSettings
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_runtime.settings import load
from support.up_process import run, up

DOCS = Path(__file__).parents[2] / "docs" / "use"
MENTIONED = {
    "rockoon group create GROUP",
    "rockoon group describe",
    "rockoon group members",
    "rockoon lag",
    "rockoon offsets undo",
    "rockoon offsets why",
    "rockoon offsets why GROUP",
}
PAGES = (
    "gateway.md",
    "gateway-consumers.md",
    "gateway-clients.md",
    "gateway-namespaces.md",
    "gateway-spring.md",
    "../operate/scaling.md",
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def typed() -> Iterator[str]:
    """Return all command lines of the pages."""
    for page in PAGES:
        text = (DOCS / page).read_text()
        for language, block in FENCE.findall(text):
            if not language:
                yield from (line.partition("#")[0].strip() for line in block.splitlines())
        yield from re.findall(r"`(rockoon(?:-gateway)? [^`]+)`", FENCE.sub("", text))


def options_of_groups() -> list[str]:
    """Return the table of a group's settings, each as the end of its command."""
    table = (DOCS / "gateway-consumers.md").read_text().partition("`rockoon group create GROUP`")[2]
    return re.findall(r"^\| .* \| `(--[^`]+)`", table.partition("\n\n")[0], re.MULTILINE)


def test_commands_for_a_cluster_are_taken_by_one(
    local_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKOON_NAMESERVERS", local_cluster.nameservers[0])
    options = options_of_groups()
    assert len(options) == 6
    commands = [each for each in dict.fromkeys(typed()) if not each.startswith("rockoon up")]
    commands = [each for each in commands if each.startswith("rockoon ")]
    assert "rockoon topic create orders" in commands
    # Named without their object.
    commands = [each for each in commands if each not in MENTIONED]
    commands += [f"rockoon group create group-{n} {each}" for n, each in enumerate(options)]
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        assert run_command_line() == 0, command


@pytest.mark.parametrize(
    "command", [each for each in dict.fromkeys(typed()) if each.startswith("rockoon up")]
)
async def test_a_cluster_with_a_gateway_starts_as_the_page_says(
    command: str, tmp_path: Path
) -> None:
    port = choose_port()
    gateway = choose_port({port})
    options = shlex.split(command)[2:]
    # Another program may use 8081 here.
    with up(tmp_path / "data", port, *options, "--gateway-port", str(gateway)) as running:
        assert f"endpoints 127.0.0.1:{gateway}" in running.shown
        run(port, "topic", "create", "orders")
        for authority in (None, tmp_path / "data" / "tls" / "ca.pem"):
            async with WireClient(f"127.0.0.1:{gateway}", ca=authority) as client:
                assert (await client.send(message("orders"))).status.code == Code.OK
        assert running.end(signal.SIGINT) == 0


def test_the_program_is_started_by_settings_that_it_has() -> None:
    (command,) = {each for each in typed() if each.startswith("rockoon-gateway ")}
    given = dict(word.removeprefix("--").split("=") for word in shlex.split(command)[1:])
    loaded = load(GatewaySettings, "gateway", file=None, environment={}, arguments=given).value
    assert (loaded.listen, loaded.nameservers) == ("0.0.0.0:8081", ("host:9876",))


def test_settings_are_those_that_there_are_and_may_have_the_values() -> None:
    named = set()
    for page in PAGES:
        found = re.findall(r"`([a-z][a-z_]+) = ([^`]+)`", (DOCS / page).read_text())
        for name, value in found:
            # The offset service decides how a young topic begins.
            service = GatewaySettings if name != "new_queue_rule" else OffsetSettings
            load(service, "any", file=None, environment={}, arguments={name: value})
            named.add(name)
    assert {"create_topics", "create_groups", "client_secrets", "reuse_port"} <= named


def test_python_on_the_pages_is_python() -> None:
    blocks = [
        block
        for page in PAGES
        for language, block in FENCE.findall((DOCS / page).read_text())
        if language == "python"
    ]
    assert blocks
    for block in blocks:
        assert ast.parse(block).body
