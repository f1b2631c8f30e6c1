"""Resource files and plans, without a cluster: faults with their lines, differences, refusals."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rockoon.admin.access_keys import KeyDescription, Permission
from rockoon.cli.failures import CommandError
from rockoon.cli.resources.fields import GROUP, Resources, resources_of
from rockoon.cli.resources.files import read_files
from rockoon.cli.resources.plan import ClusterState, Options, ResourcePlan, plan_of
from rockoon.net.routes import TopicRoute
from rockoon_core.group_settings import GROUP_SETTINGS
from rockoon_proto.v1.nameserver_pb2 import (
    CONSUME_FROM_FIRST,
    Group,
    GroupConfig,
    QueueBlock,
    StartPolicy,
    Topic,
    TopicConfig,
)
from rockoon_proto.v1.settings_pb2 import LiveSetting

OWNER = "rockoon.owner"
SECRET = "a secret of more than 24 characters"
NONE: Mapping[str, str] = {}
BROKERS = {"broker-a": False, "broker-b": False}


def read(tmp_path: Path, text: str, name: str = "resources.yaml") -> Resources:
    (tmp_path / name).write_text(text)
    return resources_of(read_files([tmp_path]))


def faults(tmp_path: Path, text: str) -> list[str]:
    """The faults of a file, from their lines on."""
    return [each.partition("resources.yaml:")[2] for each in read(tmp_path, text).faults]


def topic(name: str, queues: dict[str, int], attributes: Mapping[str, str] = NONE) -> TopicRoute:
    return TopicRoute.from_wire(
        Topic(
            config=TopicConfig(name=name, attributes=attributes),
            blocks=[QueueBlock(broker=each, queues=count) for each, count in queues.items()],
            modified_revision=7,
        )
    )


def plan(
    tmp_path: Path, text: str, state: ClusterState, *, refused: bool = False, **options: bool
) -> ResourcePlan:
    resources = read(tmp_path, text)
    assert not resources.faults
    if not state.brokers:
        state.brokers = BROKERS
    made = plan_of(resources, state, Options(**options))
    assert bool(made.refusals) == refused, made.refusals
    return made


def changes(tmp_path: Path, text: str, state: ClusterState, **options: bool) -> list[str]:
    return [str(each) for each in plan(tmp_path, text, state, **options).changes]


# Files


def test_every_fault_has_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    assert faults(
        tmp_path,
        """\
owner: two words
topics:
  orders:
    queus: 3
    queues: 5000
  both: {queues: 1, placements: {broker-a: 1}}
  "%DLQ%billing":
  "no spaces":
  odd: {attributes: {cleanup.polcy: COMPACTION}, permissions: x}
groups:
  billing:
    retry_atempts_max: 3
    below_min: lst
    from: 2026-01-31T12:00:00
    retry_delays: [10s, soon]
access_keys:
  shop:
    secret: inline
    permissions: [topic:orders=eat]
  rockoon:
settings:
  brokr: {}
""",
    ) == [
        "1: owner: 'two words' is not 1 to 64 letters, digits and . _ -",
        "4: unknown field of topic 'orders': 'queus'; did you mean 'queues'?",
        "5: queues: '5000' is not a number from 1 to 4096",
        "6: topic 'both': use queues or placements, not both",
        "7: topic '%DLQ%billing': topics whose names start with % are internal",
        "8: topic 'no spaces': 'no spaces' is not a topic name: the topic 'no spaces' has a "
        "character other than letters, digits and % | _ -",
        "9: attributes: there is no attribute 'cleanup.polcy': did you mean cleanup.policy?",
        "9: permissions: 'x' is not one of rw, r, w",
        "12: unknown field of group 'billing': 'retry_atempts_max'; did you mean "
        "'retry_attempts_max'?",
        "13: below_min: 'lst' is not one of first, last, fail",
        "14: from: '2026-01-31T12:00:00' has no zone: write 2026-01-31T12:00:00Z",
        "15: retry_delays: 'soon' is not a duration: write 30s, 15m, 2h, 1h30m or 7d",
        "18: unknown field of access key 'shop': 'secret'; did you mean 'secret_file'?",
        "19: permissions: the request is not valid: 'topic:orders=eat' is not a permission: write "
        "RESOURCE=ACTIONS, with some of read,write,admin",
        "20: access key 'rockoon': the request is not valid: 'rockoon' is the services' own key: "
        "its secret is their cluster_secret",
        "22: settings: unknown service 'brokr'; did you mean 'broker'?",
    ]


def test_the_mark_is_no_attribute_that_a_file_may_set(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, f"topics:\n  t:\n    attributes:\n      {OWNER}: x\n")
    assert fault == f"4: attributes: {OWNER} is set by `owner` at the top of the file"


def test_json_and_yaml_are_read_alike_with_lines_and_without_types(tmp_path: Path) -> None:
    found = read(tmp_path, "groups:\n  norway: {fifo: no, retry_attempts_max: 12}\n")
    assert found.groups["norway"].fields == {"fifo": False, "retry_attempts_max": 12}
    (tmp_path / "resources.yaml").unlink()
    written = {"groups": {"a:b,c": {"fifo": True, "from": None, "attributes": {'x"': "ü\n"}}}}
    found = read(tmp_path, json.dumps(written, indent=1), "more.json")
    assert "more.json:3: group 'a:b,c':" not in found.faults
    assert found.groups["a:b,c"].fields["attributes"] == {'x"': "ü\n"}
    assert [each.partition("more.json:")[2] for each in found.faults] == [
        "5: from: expected a text or a number"
    ]


def test_json_needs_no_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert list(read(tmp_path, '{"topics": {"orders": null}}', "a.json").topics) == ["orders"]
    with pytest.raises(CommandError, match=r"YAML needs PyYAML: `pip install 'rockoon\[yaml\]'`"):
        read(tmp_path, "topics: {orders: }")


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.yaml", "topics: [", ":1: expected the node content, but found '<stream end>'"),
        ("a.yaml", "topics:\n  a:\n  a:\n", ":3: 'a' occurs twice; the first is at "),
        ("a.yaml", "&a [*a]", ":1: it is nested too deeply"),
        ("a.json", '{"a": 1,\n}', ":2: Expecting property name enclosed in double quotes"),
        ("a.json", '{"a": 1,\n"a": 2}', ":2: 'a' occurs twice; the first is at "),
        ("a.json", "[" * 100_000, ": it is nested too deeply"),
        ("a.yaml", "", ": it is empty: "),
        ("a.yaml", "# half a fi", ": it is empty: "),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    with pytest.raises(CommandError) as refused:
        read(tmp_path, text, name)
    assert f"{tmp_path / name}{fault}" in str(refused.value)


def test_a_directory_is_read_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    data = tmp_path / "..2026_11_30"
    data.mkdir()
    (data / "b.yaml").write_text("owner: shop\ntopics: {b: }")
    (data / "a.yml").write_text("owner: shop\n---\ntopics: {a: }")
    (tmp_path / "..data").symlink_to(data)
    for name in ("a.yml", "b.yaml"):
        (tmp_path / name).symlink_to(Path("..data", name))
    (tmp_path / "README").write_text("no resources")
    found = resources_of(read_files([tmp_path]))
    assert (found.owner, list(found.topics), found.faults) == ("shop", ["a", "b"], [])
    (data / "b.yaml").unlink()
    with pytest.raises(FileNotFoundError):
        read_files([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommandError, match="has no file with the suffix"):
        read_files([tmp_path / "empty"])


def test_an_object_in_two_files_and_two_owners_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("owner: a\ntopics:\n  t:\n")
    found = read(tmp_path, "owner: b\ntopics:\n  t:\n")
    assert [each.replace(f"{tmp_path}/", "") for each in found.faults] == [
        "resources.yaml:1: owner: 'b' is not 'a' of another file",
        "resources.yaml:3: topic 't' is declared at a.yaml:3 as well",
    ]


def test_a_secret_is_in_a_file_beside_the_resources(tmp_path: Path) -> None:
    text = "access_keys: {shop: {secret_file: keys/shop}}"
    (fault,) = read(tmp_path, text).faults
    assert fault.endswith("keys/shop: No such file or directory")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/shop").write_text("short\n")
    (fault,) = read(tmp_path, text).faults
    assert "secret 1 has 5 characters: fewer than 24 can be guessed" in fault
    (tmp_path / "keys/shop").write_text(f"{SECRET}\n")
    key = read(tmp_path, text).keys["shop"]
    assert key.fields["secret_file"] == (tmp_path / "keys/shop", SECRET)
    assert SECRET not in repr(key)


def test_every_setting_of_a_group_can_be_declared() -> None:
    assert {row.name for row in GROUP_SETTINGS} < GROUP.keys()


# Plans


def test_what_equals_the_file_needs_no_change(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(SECRET)
    text = """\
owner: shop
topics: {orders: {queues: 2, attributes: {cleanup.policy: COMPACTION}}, any: }
groups: {billing: {retry_attempts_max: 16, from: first}}
access_keys: {shop: {secret_file: s, permissions: ["topic:orders=read,write"]}}
settings: {broker: {reserved_hours: 168}}
"""
    mark = {OWNER: "shop"}
    config = GroupConfig(
        name="billing",
        start_policy=StartPolicy(consume_from=CONSUME_FROM_FIRST),
        attributes=mark,
        consume_disabled=True,
    )
    permission = Permission("topic:orders", frozenset({"read", "write"}))
    queues = {"broker-a": 2, "broker-b": 2}
    state = ClusterState(
        topics={
            "orders": topic("orders", queues, mark | {"cleanup.policy": "COMPACTION"}),
            "any": topic("any", {"broker-a": 9}, mark),
        },
        groups={"billing": Group(config=config)},
        keys={"shop": KeyDescription("shop", (permission,), True, "", 1, 0, 0, "shop")},
        same_secrets=frozenset({"shop"}),
        settings={("broker", "reserved_hours", ""): LiveSetting(value="168", owner="shop")},
    )
    assert changes(tmp_path, text, state, prune=True) == []


def test_new_objects_are_created_keys_last(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(SECRET)
    text = """\
access_keys: {shop: {secret_file: s, permissions: ["topic:orders=write"]}}
groups: {billing: {fifo: yes, from: first}}
topics: {orders: {permissions: r}, placed: {placements: {broker-b: 3}}}
settings: {broker/broker-a: {log_level: warning}}
"""
    assert changes(tmp_path, text, ClusterState()) == [
        "create setting broker/broker-a log_level: value warning",
        "create topic orders: permissions r; queues on broker-a 4; queues on broker-b 4",
        "create topic placed: permissions rw; queues on broker-b 3",
        "create group billing: fifo yes; from first",
        "create access key shop: topic:orders write",
    ]


def test_only_what_differs_is_changed_and_what_left_the_file_returns_to_its_default(
    tmp_path: Path,
) -> None:
    (tmp_path / "s").write_text(SECRET)
    text = """\
topics: {orders: {queues: 4, permissions: r}}
groups: {billing: {paused: yes}}
access_keys: {shop: {secret_file: s, permissions: ["topic:orders=write"], description: new}}
"""
    permission = Permission("topic:orders", frozenset({"read"}))
    compacted = {"cleanup.policy": "COMPACTION"}
    state = ClusterState(
        brokers={"broker-a": False, "broker-b": False, "broker-c": True},
        topics={"orders": topic("orders", {"broker-a": 4, "broker-b": 1}, compacted)},
        groups={"billing": Group(config=GroupConfig(name="billing", retry_attempts_max=3))},
        keys={"shop": KeyDescription("shop", (permission,), False, "", 1, 0, 0)},
    )
    assert changes(tmp_path, text, state) == [
        "change topic orders: attribute cleanup.policy COMPACTION -> -; permissions rw -> r; "
        "queues on broker-b 1 -> 4",
        "change group billing: paused no -> yes; retry_attempts_max 3 -> 16",
        "change access key shop: description - -> new; "
        f"secret another -> that of {tmp_path / 's'}; topic:orders read -> write",
    ]


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("queues: 2", "has 4 queues on broker-a, not 2: queues are not removed"),
        ("placements: {broker-b: 9}", "has 4 queues on broker-a, not 0: queues are not removed"),
        ("placements: {broker-a: 4, broker-x: 1}", "broker 'broker-x' is not live"),
    ],
)
def test_fewer_queues_and_unknown_brokers_are_refused(
    tmp_path: Path, declared: str, reason: str
) -> None:
    state = ClusterState(topics={"t": topic("t", {"broker-a": 4})})
    made = plan(tmp_path, f"topics:\n  t: {{{declared}}}", state, refused=True)
    (refusal,) = made.refusals
    assert refusal.startswith(f"{tmp_path / 'resources.yaml'}:2: ")
    assert reason in refusal


def test_an_object_of_another_owner_is_changed_only_by_adoption(tmp_path: Path) -> None:
    text = "owner: shop\ntopics: {t: }\nsettings: {broker: {log_level: info}}"
    name = ("broker", "log_level", "")
    state = ClusterState(
        topics={"t": topic("t", {"broker-a": 1}, {OWNER: "bank"})},
        settings={name: LiveSetting(value="info", owner="bank")},
    )
    made = plan(tmp_path, text, state, refused=True)
    assert [each.partition(": ")[2] for each in made.refusals] == [
        "setting 'broker log_level' belongs to owner 'bank': add --adopt",
        "topic 't' belongs to owner 'bank': add --adopt",
    ]
    assert changes(tmp_path, text, state, adopt=True) == [
        f"change setting broker log_level: {OWNER} bank -> shop",
        f"change topic t: {OWNER} bank -> shop",
    ]
    assert changes(tmp_path, "topics: {u: {queues: 1}}", state) == [
        "create topic u: permissions rw; queues on broker-a 1; queues on broker-b 1"
    ]


def prunable_state(owner: str = "shop") -> ClusterState:
    mark = {OWNER: owner}
    return ClusterState(
        topics={
            "old": topic("old", {"broker-a": 1}, mark),
            "unmarked": topic("unmarked", {"broker-a": 1}),
            "bank": topic("bank", {"broker-a": 1}, {OWNER: "bank"}),
            "%DLQ%old": topic("%DLQ%old", {"broker-a": 1}, mark),
        },
        groups={
            name: Group(config=GroupConfig(name=name, attributes=each))
            for name, each in {"old": mark, "unmarked": {}}.items()
        },
        keys={
            name: KeyDescription(name, (), False, "", 1, 0, 0, each)
            for name, each in {"old": owner, "unmarked": ""}.items()
        },
        settings={
            ("broker", "log_level", ""): LiveSetting(value="info", owner=owner),
            ("broker", "drained", "broker-a"): LiveSetting(value="true"),
        },
    )


def test_prune_deletes_only_marked_objects_and_never_internal_topics(tmp_path: Path) -> None:
    assert changes(tmp_path, "owner: shop", prunable_state(), prune=True) == [
        "delete access key old",
        "delete group old",
        "delete topic old",
        "delete setting broker log_level",
    ]
    assert changes(tmp_path, "owner: shop", prunable_state()) == []
    kept = "owner: shop\ntopics: {old: }\ngroups: {old: }\naccess_keys: {old: }\n"
    assert changes(tmp_path, kept, prunable_state(), prune=True) == [
        "delete setting broker log_level"
    ]


@pytest.mark.parametrize(
    ("topic_name", "count", "reason"),
    [
        ("old", 5, "topic old: topic 'old' has 5 messages: add --delete-messages"),
        ("%DLQ%old", 1, "group old: topic '%DLQ%old' has 1 message: add --delete-messages"),
        ("old", None, "topic old: topic 'old' has unknown messages: add --delete-messages"),
    ],
)
def test_prune_keeps_messages_unless_it_is_told_otherwise(
    tmp_path: Path, topic_name: str, count: int | None, reason: str
) -> None:
    state = prunable_state()
    state.messages = {topic_name: count}
    made = plan(tmp_path, "owner: shop", state, prune=True, refused=True)
    assert made.refusals[0].startswith(reason)
    assert len(changes(tmp_path, "owner: shop", state, prune=True, delete_messages=True)) == 4


def test_prune_keeps_a_group_with_members_and_the_key_of_the_command(tmp_path: Path) -> None:
    state = prunable_state()
    state.members, state.own_key = {"old": 2}, "old"
    assert plan(tmp_path, "owner: shop", state, prune=True, refused=True).refusals == [
        "access key old: it signs the calls of this command",
        "group old: it has 2 live members",
    ]


def test_the_key_of_the_command_keeps_its_permission(tmp_path: Path) -> None:
    admin = Permission("cluster", frozenset({"admin"}))
    state = ClusterState(
        keys={"ops": KeyDescription("ops", (admin,), False, "", 1, 0, 0)}, own_key="ops"
    )
    for text in ("{}", '{permissions: ["cluster=admin"], disabled: yes}'):
        made = plan(tmp_path, f"access_keys: {{ops: {text}}}", state, refused=True)
        assert "signs the calls of this command: it needs cluster=admin" in made.refusals[0]
    text = 'access_keys: {ops: {permissions: ["cluster=admin", "topic:*=read"]}}'
    assert changes(tmp_path, text, state) == ["change access key ops: topic:* - -> read"]


def test_a_key_without_a_secret_file_has_to_exist(tmp_path: Path) -> None:
    made = plan(tmp_path, "access_keys: {shop: }", ClusterState(), refused=True)
    assert made.refusals[0].endswith("access key 'shop' does not exist: add its secret_file")
