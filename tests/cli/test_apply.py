"""`rockoon apply` against a cluster: creation, drift, concurrent and interrupted runs, deletion."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.gateways import running_gateway
from rockoon.admin.access_keys import Permission
from rockoon.cli.failures import CommandError
from rockoon.cli.groups import changed
from rockoon.cli.resources import cluster_state
from rockoon.cli.resources.fields import resources_of
from rockoon.cli.resources.files import read_files
from rockoon.cli.resources.plan import Options, ResourceChange
from rockoon.errors import (
    AccessKeyChanged,
    AccessKeyNotFound,
    InvalidArgument,
    NotAuthenticated,
    SettingChanged,
)
from rockoon.net.access import AccessKey
from rockoon.testing.disposable import DisposableCluster
from rockoon_core.protocol import ABSENT_REVISION
from rockoon_proto.v1.nameserver_pb2 import GroupConfig

OWNER = "rockoon.owner"
FIRST, SECOND = "the first secret of the shop's key", "the second secret of the shop's key"


@pytest.fixture
def name(request: pytest.FixtureRequest, cluster: Any) -> str:
    """A name for objects and owners of the test's own."""
    return str(cluster.new_topic(request.node.name, queues_per_broker=1))[-40:].lstrip("-") + "-x"


@pytest.fixture
def apply(rockoon: Any, tmp_path: Path) -> Any:
    """Run `rockoon apply` on a text."""

    def run(text: str, *options: str, status: int = 0) -> Any:
        (tmp_path / "resources.yaml").write_text(text)
        return rockoon("apply", "-f", str(tmp_path), *options, status=status)

    return run


def test_a_cluster_becomes_equal_to_a_file_once(rockoon: Any, apply: Any, name: str) -> None:
    text = f"""\
owner: {name}
topics:
  {name}: {{queues: 2, attributes: {{cleanup.policy: COMPACTION}}}}
groups:
  {name}: {{from: first, retry_attempts_max: 3, retry_delays: [10s, 1m], fifo: yes}}
"""
    planned = apply(text, "--plan", status=2)
    assert planned.out.splitlines()[-1] == "2 changes to make"
    assert not [each for each in rockoon("topic", "list", "--json").json if each["topic"] == name]
    done = apply(text)
    assert done.out.splitlines()[:-1] == planned.out.splitlines()[:-1]
    assert apply(text, "--plan").out == "0 changes to make\n"
    assert apply(text, "--json").json == {"applied": True, "changes": []}
    topic = rockoon("topic", "describe", name, "--json").json
    assert topic["attributes"] == {"cleanup.policy": "COMPACTION", OWNER: name}
    assert sorted((each["broker"], each["queue_id"]) for each in topic["queues"]) == [
        (broker, queue) for broker in ("broker-a", "broker-b") for queue in (0, 1)
    ]
    group = rockoon("group", "describe", name, "--json").json
    assert (group["retry_attempts_max"], group["retry_delays_ms"]) == (3, [10_000, 60_000])
    assert group["start_policy"]["consume_from"] == "CONSUME_FROM_FIRST"


def test_drift_is_reported_and_repaired_and_a_pause_stays(
    rockoon: Any, apply: Any, name: str
) -> None:
    text = f"topics: {{{name}: {{queues: 1}}}}\ngroups: {{{name}: }}"
    apply(text)
    rockoon("topic", "set", name, "--permissions", "r", "--attribute", "reserve.time=5")
    rockoon("group", "update", name, "--retry-attempts-max", "2")
    rockoon("group", "pause", name)
    planned = apply(text, "--plan", "--json", status=2).json
    assert planned["changes"] == [
        {
            "action": "change",
            "kind": "topic",
            "name": name,
            "details": ["attribute reserve.time 5 -> -", "permissions r -> rw"],
        },
        {
            "action": "change",
            "kind": "group",
            "name": name,
            "details": ["retry_attempts_max 2 -> 16"],
        },
    ]
    apply(text)
    assert apply(text, "--plan").out == "0 changes to make\n"
    assert rockoon("group", "describe", name, "--json").json["consume_disabled"]
    grown = text.replace("queues: 1", "queues: 3")
    assert "queues on broker-a 1 -> 3; queues on broker-b 1 -> 3" in apply(grown).out


def test_one_refusal_and_nothing_is_changed(rockoon: Any, apply: Any, name: str) -> None:
    apply(f"topics: {{{name}: {{queues: 2}}}}")
    text = f"""\
topics:
  {name}-new: {{queues: 1}}
  {name}: {{queues: 1}}
settings:
  broker: {{reserved_hours: -1, reserved_hour: 2}}
"""
    said = apply(text, status=1).err
    assert ":3: topic " in said
    assert "has 2 queues on broker-a, not 1: queues are not removed" in said
    assert ":5: broker reserved_hours: " in said
    assert "did you mean 'reserved_hours'" in said or "reserved_hours" in said
    topics = [each["topic"] for each in rockoon("topic", "list", "--json").json]
    assert name in topics
    assert f"{name}-new" not in topics


def test_usage_errors_are_no_drift(rockoon: Any, tmp_path: Path) -> None:
    assert "No such option" in rockoon("apply", "--plann", status=1).err
    assert "Missing option" in rockoon("apply", "--plan", status=1).err
    rockoon("apply", "--help")
    (tmp_path / "a.yaml").write_text("topics: {}")
    said = rockoon.fails("apply", "-f", str(tmp_path), "--prune")
    assert said == "--prune needs `owner: NAME` at the top of a file"
    assert rockoon.fails("apply", "-f", str(tmp_path / "b.yaml")).endswith(
        "No such file or directory"
    )


def test_prune_deletes_what_left_the_file_but_no_messages(
    rockoon: Any, apply: Any, name: str
) -> None:
    rockoon("topic", "create", f"{name}-own")
    text = f"""\
owner: {name}
topics: {{{name}-full: {{queues: 1}}, {name}-empty: {{queues: 1}}}}
groups: {{{name}: }}
settings: {{broker: {{reserved_hours: 71}}, broker/broker-a: {{log_level: warning}}}}
"""
    apply(text)
    rockoon("produce", f"{name}-full", stdin="one\n")
    rockoon("consume", f"{name}-full", "--group", name, "--from", "first")
    rockoon("broker", "config", "set", "log_level", "info", "--node", "broker-b")
    less = f"owner: {name}"
    assert apply(less, "--plan").out == "0 changes to make\n"
    said = apply(less, "--prune", status=1).err
    assert f"topic '{name}-full' has 1 message: add --delete-messages" in said
    assert rockoon("group", "describe", name, "--json").json["group"] == name
    kept = f"owner: {name}\ntopics: {{{name}-full: }}"
    planned = apply(kept, "--prune", "--plan", status=2).out.splitlines()
    assert planned[:-1] == [
        f"delete group {name}",
        f"delete topic {name}-empty",
        "delete setting broker reserved_hours",
        "delete setting broker/broker-a log_level",
    ]
    apply(kept, "--prune")
    assert [
        setting["name"]
        for process in rockoon("broker", "config", "get", "--live", "--json").json
        for setting in process["settings"]
    ] == ["log_level"], "only the setting of an operator is left"
    rockoon("broker", "config", "unset", "log_level", "--node", "broker-b")
    assert apply(less, "--prune", "--delete-messages").out.startswith(f"delete topic {name}-full\n")
    topics = [each["topic"] for each in rockoon("topic", "list", "--json").json]
    assert [each for each in topics if each.startswith(f"{name}-")] == [f"{name}-own"]


def test_a_live_setting_that_an_operator_has_changed_is_drift(
    rockoon: Any, apply: Any, name: str
) -> None:
    text = f"owner: {name}\nsettings: {{offset: {{calls_per_address_max: 5000}}}}"
    apply(text)
    rockoon("offsets", "config", "set", "calls_per_address_max", "4000")
    planned = apply(text, "--plan", status=2).out
    assert f"{OWNER} - -> {name}; value 4000 -> 5000" in planned
    apply(text)
    (process,) = rockoon("offsets", "config", "get", "calls_per_address_max", "--json").json
    assert process["settings"][0]["value"] == "5000"
    apply(f"owner: {name}", "--prune")


async def test_settings_of_gateways_follow_the_file_and_prune_needs_no_gateway(
    rockoon: Any, apply: Any, cluster: Any, name: str
) -> None:
    """A gateway without `admin_listen` follows settings, and no operator can call it."""

    async def run(text: str, *options: str, status: int = 0) -> Any:
        return await asyncio.to_thread(apply, text, *options, status=status)

    settings = "settings: {gateway: {client_seconds_max: %s}, gateway/%s: {log_level: warning}}"
    text = f"owner: {name}\n{settings % (60, 'a')}"
    refused = await run(text, "--prune", status=1)
    assert "no gateway follows the nameservers" in refused.err
    await run(f"owner: {name}", "--prune")
    operated = {"admin_listen": "127.0.0.1:0"}
    async with running_gateway(cluster, name="a", **operated), running_gateway(cluster, name="b"):
        refused = await run(settings % (0, "c"), status=1)
        assert "client_seconds_max = 0" in refused.err
        assert "must be between 1 and 86400" in refused.err
        assert "no gateway named 'c' follows the nameservers" in refused.err
        planned = await run(text, "--plan", "--prune", status=2)
        assert [each.partition(":")[0] for each in planned.out.splitlines()] == [
            "create setting gateway client_seconds_max",
            "create setting gateway/a log_level",
            "2 changes to make",
        ]
        await run(text, "--prune")
        again = await run(text, "--plan", "--prune")
        assert again.out == "0 changes to make\n"
        refused = await run(text.replace(name, "bank"), "--plan", status=1)
        assert f"belongs to owner '{name}'" in refused.err
        less = await run(f"owner: {name}", "--prune")
        assert less.out.splitlines() == [
            "delete setting gateway client_seconds_max",
            "delete setting gateway/a log_level",
            "2 changes made",
        ]


def test_runs_at_the_same_time_make_each_change_once(
    rockoon: Any, name: str, tmp_path: Path
) -> None:
    def text(queues: int) -> str:
        topics = "".join(f"  {name}-{each}: {{queues: {queues}}}\n" for each in range(8))
        groups = "".join(f"  {name}-{each}: {{fifo: yes}}\n" for each in range(8))
        return f"owner: {name}\ntopics:\n{topics}groups:\n{groups}"

    command = [*rockoon.program, "apply", "-f", str(tmp_path / "a.yaml")]
    for queues in (1, 3):
        (tmp_path / "a.yaml").write_text(text(queues))
        runs = [subprocess.Popen(command, env=rockoon.environment) for _ in range(3)]
        assert [each.wait() for each in runs] == [0, 0, 0]
        listed = rockoon("topic", "list", "--json").json
        made = [len(each["queues"]) for each in listed if each["topic"].startswith(f"{name}-")]
        assert made == [2 * queues] * 8
    assert rockoon("apply", "-f", str(tmp_path), "--plan").out == "0 changes to make\n"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_ended_is_continued_by_the_next(
    rockoon: Any, name: str, tmp_path: Path, end: signal.Signals
) -> None:
    topics = "".join(f"  {name}-{each}: {{queues: 1}}\n" for each in range(40))
    (tmp_path / "a.yaml").write_text(f"owner: {name}\ntopics:\n{topics}")
    command = [*rockoon.program, "apply", "-f", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=rockoon.environment, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"create topic ")
        process.send_signal(end)
        _, said = process.communicate()
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert said == b"rockoon: interrupted: the next run makes the changes that are left\n"
    ran = rockoon(*command[3:])
    made = len(ran.out.splitlines()) - 1
    assert 0 < made < 40
    assert rockoon("apply", "-f", str(tmp_path), "--plan").out == "0 changes to make\n"


@pytest.fixture
def run_with_other(rockoon: Any, cluster: Any, tmp_path: Path) -> Any:
    """Apply a text, while another run applies its own text after the first change."""

    async def run(text: str, other: str, *options: str) -> list[ResourceChange]:
        (tmp_path / "a.yaml").write_text(text)
        (tmp_path / "other.yaml").write_text(other)
        made: list[ResourceChange] = []

        def report(change: ResourceChange) -> None:
            if not made:
                rockoon("apply", "-f", str(tmp_path / "other.yaml"), *options)
            made.append(change)

        resources = resources_of(read_files([tmp_path / "a.yaml"]))
        async with cluster.connect() as connection:
            return await cluster_state.apply(connection, resources, Options(prune=True), report)

    return run


async def test_a_group_that_another_owner_has_adopted_meanwhile_is_not_deleted(
    rockoon: Any, apply: Any, run_with_other: Any, name: str
) -> None:
    apply(f"owner: {name}\ngroups: {{{name}: }}")
    other = f"owner: {name}-bank\ngroups: {{{name}: }}"
    text = f"owner: {name}\ntopics: {{{name}-new: {{queues: 1}}}}"
    made = await run_with_other(text, other, "--adopt")
    assert [str(each).partition(":")[0] for each in made] == [f"create topic {name}-new"]
    attributes = rockoon("group", "describe", name, "--json").json["attributes"]
    assert attributes == {OWNER: f"{name}-bank"}


async def test_a_live_setting_that_another_owner_has_changed_meanwhile_is_not_deleted(
    rockoon: Any, apply: Any, run_with_other: Any, name: str
) -> None:
    settings = "settings: {broker: {calm_seconds: %s}}"
    apply(f"owner: {name}\n{settings % 7}")
    other = f"owner: {name}-bank\n{settings % 8}"
    text = f"owner: {name}\ntopics: {{{name}-new: {{queues: 1}}}}"
    made = await run_with_other(text, other, "--adopt")
    assert [str(each).partition(":")[0] for each in made] == [f"create topic {name}-new"]
    shown = rockoon("broker", "config", "get", "calm_seconds").out
    rockoon("broker", "config", "unset", "calm_seconds")
    assert "8.0 s  live setting" in shown


async def test_a_live_setting_that_another_owner_has_stored_meanwhile_is_not_replaced(
    rockoon: Any, run_with_other: Any, name: str
) -> None:
    log_level = "broker/broker-a: {log_level: warning}"
    text = f"owner: {name}\nsettings: {{{log_level}, broker: {{calm_seconds: 7}}}}"
    other = f"owner: {name}-bank\nsettings: {{broker: {{calm_seconds: 8}}}}"
    try:
        with pytest.raises(CommandError, match=f"belongs to owner '{name}-bank': add --adopt"):
            await run_with_other(text, other)
        assert "8.0 s  live setting" in rockoon("broker", "config", "get", "calm_seconds").out
    finally:
        rockoon("broker", "config", "unset", "calm_seconds")
        rockoon("broker", "config", "unset", "log_level", "--node", "broker-a")


async def test_a_refusal_after_the_first_change_reports_that_change(
    apply: Any, run_with_other: Any, name: str
) -> None:
    apply(f"topics: {{{name}-old: {{queues: 1}}}}")
    old = f"{name}-old: {{queues: 1, permissions: r}}"
    text = f"owner: {name}\ntopics: {{{name}-new: {{queues: 1}}, {old}}}"
    with pytest.raises(CommandError) as refused:
        await run_with_other(text, f"topics: {{{name}-old: {{queues: 3}}}}")
    said = str(refused.value)
    assert "has 3 queues on broker-a, not 1: queues are not removed" in said
    assert said.startswith("1 change made, and the others are refused\n")


async def test_changes_of_a_group_at_the_same_time_are_all_kept(cluster: Any, name: str) -> None:
    """An operator pauses a group while a program changes its settings."""

    def pause(config: GroupConfig) -> None:
        config.consume_disabled = True

    def fewer(config: GroupConfig) -> None:
        config.retry_attempts_max = 2

    async with cluster.connect() as connection:
        admin = connection.admin
        await admin.create_group(name)
        async with asyncio.TaskGroup() as tasks:
            for change in (pause, fewer):
                tasks.create_task(changed(admin, name, change))
        config = (await admin.get_group(name)).group.config
    assert (config.consume_disabled, config.retry_attempts_max) == (True, 2)


# Access keys


@pytest.fixture(scope="module")
def guarded() -> Iterator[DisposableCluster]:
    with DisposableCluster(access=True, single=True) as cluster:
        yield cluster


@pytest.fixture
def guarded_apply(guarded: DisposableCluster, rockoon: Any, tmp_path: Path) -> Any:
    """Run `rockoon apply` on a text with the cluster secret, or with another key."""
    assert guarded.access is not None
    (tmp_path / "admin").write_text(guarded.access.secret)

    def run(text: str, *options: str, status: int = 0, key: tuple[str, str] = ("", "")) -> Any:
        (tmp_path / "resources.yaml").write_text(text)
        name, file = key[0] or guarded.access.id, key[1] or "admin"  # type: ignore[union-attr]
        signed = ("--access-key", name, "--access-secret-file", str(tmp_path / file))
        where = ("--nameservers", guarded.nameservers[0], "-f", str(tmp_path / "resources.yaml"))
        return rockoon("apply", *where, *signed, *options, status=status)

    return run


async def may_call(cluster: DisposableCluster, secret: str, key: str = "shop") -> bool:
    try:
        async with cluster.connect(AccessKey(key, secret)) as connection:
            await connection.admin.list_topics()
    except NotAuthenticated:
        return False
    return True


async def test_a_key_has_the_secret_of_its_file_and_follows_it(
    guarded: DisposableCluster, guarded_apply: Any, tmp_path: Path
) -> None:
    text = """\
owner: shop
access_keys:
  shop:
    secret_file: shop-secret
    description: the web shop
    permissions: ["topic:orders=read,write", "group:billing=read"]
"""
    (tmp_path / "shop-secret").write_text(f"{FIRST}\n")
    planned = guarded_apply(text, "--plan", status=2)
    assert FIRST not in planned.out
    assert not await may_call(guarded, FIRST)
    guarded_apply(text)
    assert await may_call(guarded, FIRST)
    assert guarded_apply(text, "--plan").out == "0 changes to make\n"
    (tmp_path / "shop-secret").write_text(f"{SECOND}\n{FIRST}\n")
    planned = guarded_apply(text, "--plan", status=2)
    assert f"secret another -> that of {tmp_path / 'shop-secret'}" in planned.out
    guarded_apply(text)
    assert guarded_apply(text, "--plan").out == "0 changes to make\n"
    for secret in (FIRST, SECOND):
        assert await may_call(guarded, secret), "the former secret is valid for a day"
    less = text.replace("topic:orders=read,write", "topic:orders=write,admin")
    assert "topic:orders read,write -> write,admin" in guarded_apply(less).out
    async with guarded.connect() as connection:
        keys = connection.admin.access_keys
        (found,) = [each for each in await keys.list() if each.id == "shop"]
        assert (found.owner, found.description) == ("shop", "the web shop")
        assert list(map(str, found.permissions)) == [
            "group:billing=read",
            "topic:orders=write,admin",
        ]
        await keys.disable("shop")
    assert guarded_apply(text.replace("read,write", "write,admin"), "--plan").out == (
        "0 changes to make\n"
    ), "a disabled key stays disabled"
    assert guarded_apply("owner: shop", "--prune").out == "delete access key shop\n1 change made\n"


async def test_a_key_that_another_owner_has_changed_meanwhile_is_not_deleted(
    guarded: DisposableCluster, guarded_apply: Any, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(FIRST)
    guarded_apply("owner: shop\naccess_keys: {till: {secret_file: secret}}")
    (tmp_path / "new.yaml").write_text("owner: shop\ntopics: {till-new: {queues: 1}}")
    made: list[str] = []

    def report(change: ResourceChange) -> None:
        if not made:
            guarded_apply("owner: bank\naccess_keys: {till: {description: b}}", "--adopt")
        made.append(str(change).partition(":")[0])

    resources = resources_of(read_files([tmp_path / "new.yaml"]))
    async with guarded.connect() as connection:
        await cluster_state.apply(connection, resources, Options(prune=True), report)
        assert made == ["create topic till-new"]
        assert (await connection.admin.access_keys.describe("till")).owner == "bank"
        await connection.admin.access_keys.delete("till")


async def test_a_change_of_a_key_or_a_setting_as_it_was_before_is_refused_by_name(
    guarded: DisposableCluster,
) -> None:
    async with guarded.connect() as connection:
        keys, settings = connection.admin.access_keys, connection.admin.settings
        await keys.create("till")
        before = (await keys.describe("till")).modified_revision
        now = (await keys.update("till", description="x")).modified_revision
        old = {"expected_modified_revision": before}
        for change in (keys.delete("till", **old), keys.update("till", owner="y", **old)):
            with pytest.raises(AccessKeyChanged, match="access key 'till' was changed"):
                await change
        await keys.update("till", description="y", expected_modified_revision=now)
        await keys.delete("till")
        with pytest.raises(AccessKeyNotFound):
            await keys.delete("till", expected_modified_revision=now)

        async def stored(value: str) -> int:
            (found,) = await settings.set("broker", "calm_seconds", value)
            return found.stored[0].modified_revision

        before, now = await stored("7"), await stored("8")
        setting, old = ("broker", "calm_seconds"), {"expected_modified_revision": before}
        for change in (settings.unset(*setting, **old), settings.set(*setting, "9", **old)):
            with pytest.raises(SettingChanged, match="'calm_seconds' of every broker was changed"):
                await change
        absent = {"expected_modified_revision": ABSENT_REVISION}
        for change in (settings.unset(*setting, **absent), settings.set(*setting, "9", **absent)):
            with pytest.raises(SettingChanged, match="'calm_seconds' of every broker was changed"):
                await change
        await settings.unset(*setting, expected_modified_revision=now)
        for old in ({"expected_modified_revision": now}, absent):
            with pytest.raises(InvalidArgument, match="has no live setting"):
                await settings.unset(*setting, **old)
        await settings.set(*setting, "9", **absent)
        await settings.unset(*setting)


async def test_a_key_that_may_not_administer_keys_manages_its_topics(
    guarded: DisposableCluster, guarded_apply: Any, tmp_path: Path
) -> None:
    text = "owner: team\ntopics: {team-a: {queues: 1}}\ngroups: {team-a: }"
    (tmp_path / "team").write_text(FIRST)
    permissions = ["topic:team-*=read,admin", "group:team-*=read,admin"]
    async with guarded.connect() as connection:
        await connection.admin.access_keys.create(
            "team", map(Permission.parse, permissions), secret=FIRST
        )
    team = ("team", "team")
    guarded_apply(text, "--prune", key=team)
    assert guarded_apply(text, "--plan", "--prune", key=team).out == "0 changes to make\n"
    said = guarded_apply(text + "\naccess_keys: {x: }", key=team, status=1).err
    assert "cluster" in said
    planned = guarded_apply("owner: team", "--prune", key=team).out
    assert planned == "delete group team-a\ndelete topic team-a\n2 changes made\n"


def test_without_access_keys_a_declared_key_is_refused(apply: Any) -> None:
    assert "access = off" in apply("access_keys: {shop: }", status=1).err


@pytest.mark.parametrize("owner", ["two words", "o" * 65])
async def test_the_cluster_refuses_an_owner_that_no_file_can_have(
    guarded: DisposableCluster, owner: str
) -> None:
    async with guarded.connect() as connection:
        keys, settings = connection.admin.access_keys, connection.admin.settings
        await keys.create(f"owned-{len(owner)}", owner="shop")
        for call in (
            keys.create(f"refused-{len(owner)}", owner=owner),
            keys.update(f"owned-{len(owner)}", owner=owner),
            settings.set("broker", "log_level", "warning", owner=owner),
        ):
            with pytest.raises(InvalidArgument, match="is not 1 to 64 letters"):
                await call
        owners = {each.id: each.owner for each in await keys.list()}
    assert owners[f"owned-{len(owner)}"] == "shop"
    assert f"refused-{len(owner)}" not in owners
