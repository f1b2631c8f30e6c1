"""The command line itself: help, version, typos, and errors without a cluster."""

import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from rockoon.cli.app import EXAMPLES, add_examples, app, common_options_first
from rockoon.local.directory import choose_port
from rockoon_format import kernel
from support.waiting import DEADLINE_SECONDS


def test_help_names_every_command(rockoon: Any) -> None:
    shown = rockoon("--help").out
    for command in ("up", "status", "topic", "group", "produce", "consume", "offsets"):
        assert f"\n  {command} " in shown
    assert "reset" in rockoon("offsets", "--help").out


def test_version(rockoon: Any) -> None:
    shown = f"rockoon {version('rockoon')} (kernel: {kernel.name()})\n"
    assert rockoon("--version").out == shown


@pytest.mark.parametrize(
    ("installed", "cause"),
    [
        ("None", "rockoon-kernel is not installed"),
        (
            "types.SimpleNamespace(INTERFACE=-1)",
            "the installed rockoon-kernel has another version",
        ),
    ],
)
def test_version_without_the_compiled_kernel_names_the_way_to_it(
    installed: str, cause: str
) -> None:
    program = (
        f"import sys, types; sys.modules['rockoon_kernel'] = {installed}\n"
        "sys.argv = ['rockoon', '--version']\n"
        "from rockoon.cli.app import run_command_line\n"
        "sys.exit(run_command_line())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    first, advice = ran.stdout.splitlines()
    assert first == f"rockoon {version('rockoon')} (kernel: numpy)"
    assert advice.startswith(f"{cause}, so NumPy")
    assert advice.endswith("run: pip install --upgrade 'rockoon[local]'")


def test_help_loads_neither_grpc_nor_numpy() -> None:
    program = (
        "import sys; sys.argv = ['rockoon', '--help']\n"
        "from rockoon.cli.app import run_command_line\n"
        "run_command_line()\n"
        "heavy = {'grpc', 'numpy', 'google.protobuf', 'asyncio', 'uvloop', 'email', 'rich'}\n"
        "heavy &= sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["topik", "list"], "topic"),
        (["topic", "creat", "x"], "create"),
        (["offsets", "rest"], "reset"),
        (["topic", "create", "x", "--queus", "2"], "--queues"),
    ],
)
def test_a_typo_gets_a_suggestion(rockoon: Any, typed: list[str], meant: str) -> None:
    assert meant in rockoon.misused(*typed)


@pytest.mark.parametrize("arguments", [["topic", "list"], ["produce", "orders"], ["status"]])
def test_without_a_cluster_the_way_to_one_is_shown(rockoon: Any, arguments: list[str]) -> None:
    nowhere = f"127.0.0.1:{choose_port()}"
    ran = rockoon(*arguments, "--nameservers", nowhere, status=1)
    assert ran.out == ""
    assert f"rockoon: no nameserver answers at {nowhere}" in ran.err
    assert "`rockoon up`" in ran.err


@pytest.mark.parametrize("place", ["before", "after"])
def test_common_options_may_stand_before_and_after_the_command(
    rockoon: Any, cluster: Any, place: str
) -> None:
    """A CA file that does not exist shows that the option was read."""
    given = ["--nameservers", cluster.nameservers[0], "--tls-ca", "/nowhere/ca.pem"]
    command = ["topic", "list"]
    arguments = [*given, *command] if place == "before" else [*command, *given]
    assert "/nowhere/ca.pem" in rockoon.fails(*arguments)
    given = ["--nameservers", f"127.0.0.1:{choose_port()}"]
    arguments = [*given, *command] if place == "before" else [*command, *given]
    assert "no nameserver answers" in rockoon.fails(*arguments)


def test_only_words_before_two_dashes_are_options() -> None:
    words = ["produce", "--access-key=shop", "--", "--tls-ca", "x"]
    assert common_options_first(words) == [*("--access-key=shop", "produce", "--", "--tls-ca", "x")]
    assert common_options_first(["status", "--tls-ca"]) == ["--tls-ca", "status"]


def commands_of(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        if path != "spark":  # its programs have a parser of their own
            yield from commands_of(below, f"{path} {name}".strip())


COMMANDS = dict(commands_of(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS)
def test_each_help_has_an_example_that_can_be_parsed(path: str) -> None:
    program, *words = shlex.split(EXAMPLES[path])
    assert program == "rockoon"
    assert len(path.split()) < 2 or words[: len(path.split())] == path.split()
    command = COMMANDS[""]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if "--help" not in words:
        given = command.make_context("rockoon", words).params
        for each in command.params:
            if re.fullmatch(r"[a-z]+(\|[a-z]+)+", each.metavar or "") and given[each.name]:
                assert given[each.name] in each.metavar.split("|")
    add_examples(COMMANDS[""])
    assert EXAMPLES[path] in COMMANDS[path].epilog


# The commands of `rockoon spark` parse their own options.
RUNNABLE = sorted(
    path
    for path, command in COMMANDS.items()
    if path and not path.startswith("spark") and not hasattr(command, "commands")
)
# Commands that need no cluster, or report their findings without one.
WITHOUT_CLUSTER = ("up", "doctor", "support bundle", "apply", "table", "backup", "offsets import")


@pytest.mark.parametrize("path", RUNNABLE)
def test_an_option_that_does_not_exist_is_named_by_each_command(rockoon: Any, path: str) -> None:
    # `apply --plan` has status 2 if there is a difference.
    ran = rockoon(*path.split(), "--no-such-option", status=1 if path == "apply" else 2)
    assert "No such option: --no-such-option" in ran.err


@pytest.mark.parametrize(
    "path", [each for each in RUNNABLE if not each.startswith(WITHOUT_CLUSTER)]
)
def test_each_command_says_in_one_sentence_that_there_is_no_cluster(
    rockoon: Any, path: str
) -> None:
    nowhere = f"127.0.0.1:{choose_port()}"
    _, *words = shlex.split(EXAMPLES[path])
    if any(each.name == "yes" for each in COMMANDS[path].params):
        words.append("--yes")
    said = rockoon.fails(*words, "--nameservers", nowhere)
    assert said.startswith(f"no nameserver answers at {nowhere}: ")


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["lag", "--watch", "5"],
        ["top"],
        ["consume", "orders", "--follow"],
        ["produce", "orders"],
        ["doctor"],
        ["backup", "create", "copy"],
    ],
    ids=lambda words: words[0],
)
def test_ctrl_c_ends_a_command_that_waits_for_a_silent_nameserver(
    rockoon: Any, tmp_path: Path, words: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_SECONDS)
        environment = {
            **rockoon.environment,
            "ROCKOON_NAMESERVERS": f"127.0.0.1:{silent.getsockname()[1]}",
        }
        with subprocess.Popen(
            [*rockoon.program, *words],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            # First a probe of the port, then the connection on which no answer comes.
            accepted = [silent.accept()[0] for _ in range(2)]
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
        for each in accepted:
            each.close()
    assert (process.returncode, err) == (130, ""), out


def test_each_example_belongs_to_a_command() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()


def test_an_unknown_host_is_not_called_a_cluster_that_is_down(rockoon: Any) -> None:
    said = rockoon.fails("topic", "list", "--nameservers", "no-such-host.invalid:9876")
    assert said.startswith("host no-such-host.invalid is unknown: check the spelling")


def test_the_port_of_a_broker_is_named_as_no_nameserver(rockoon: Any, cluster: Any) -> None:
    broker = next(each.address for each in cluster.nodes if each.name == "broker-a")
    said = rockoon.fails("topic", "list", "--nameservers", broker)
    assert f"{broker} answers, but is not a nameserver" in said


def test_a_misspelt_topic_or_group_gets_a_suggestion(rockoon: Any, topic: str) -> None:
    rockoon("group", "create", f"{topic}-billing")
    misspelt = topic[:-1] + "x" + topic[-1:]
    for command in (["topic", "describe"], ["produce"], ["consume"]):
        assert f"(did you mean {topic}" in rockoon.fails(*command, misspelt)
    said = rockoon.fails("group", "describe", f"{topic}-biling")
    assert f"(did you mean {topic}-billing" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create", "or\udced"],
        ["group", "create", "or\udced"],
        ["lag", "or\udced"],
        ["offsets", "why", "or\udced"],
        ["dlq", "list", "or\udced"],
        ["message", "query", "taken", "--key", "or\udced"],
        ["consume", "taken", "--group", "or\udced"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_name_that_is_not_unicode_is_refused_with_a_sentence(
    rockoon: Any, taken: str, arguments: list[str]
) -> None:
    typed = [taken if each == "taken" else each for each in arguments]
    assert "lone surrogate U+DCED" in rockoon.fails(*typed)


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("topik", 2)])
def test_the_installed_command_is_the_one_tested_here(rockoon: Any, word: str, status: int) -> None:
    ended = subprocess.run([*rockoon.program, word], capture_output=True, timeout=60, check=False)
    assert ended.returncode == status


def test_an_address_that_is_none_is_refused(rockoon: Any) -> None:
    assert "'nonsense' is not of the form host:port" in rockoon.fails(
        "topic", "list", "--nameservers", "nonsense"
    )
