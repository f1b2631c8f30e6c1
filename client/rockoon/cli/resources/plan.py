"""Plan: the changes that make a cluster equal to its resources, and the refused ones. Pure.

Objects of all kinds are compared as fields, name → text.

Invariants:
- An object with the mark of another owner is not changed. `adopt` replaces the mark.
- Only objects with the mark of the resources' owner are deleted; never an internal topic, and a
  topic with messages only if the caller says so.
- If one change is refused, no change is made.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from rockoon.admin.admin import Admin
from rockoon.cli.groups import delays_text, policy_text
from rockoon.cli.output import cell, counted
from rockoon.cli.resources.fields import (
    Resource,
    Resources,
    SettingName,
    group_config,
    topic_config,
)
from rockoon.cli.topics import PERMISSION_NAMES
from rockoon_core.group_settings import GROUP_SETTINGS
from rockoon_core.protocol import ABSENT_REVISION
from rockoon_format.names import dlq_topic, retry_topic
from rockoon_format.topic_attributes import OWNER
from rockoon_proto.v1.nameserver_pb2 import Group, GroupConfig

if TYPE_CHECKING:
    from rockoon.admin.access_keys import KeyDescription, Permission
    from rockoon.net.routes import TopicRoute
    from rockoon_proto.v1.settings_pb2 import LiveSetting

Make: TypeAlias = Callable[[Admin], Awaitable[object]]
Fields: TypeAlias = dict[str, str]

QUEUES_DEFAULT = 4


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command; see `rockoon apply --help`."""

    prune: bool = False
    delete_messages: bool = False
    adopt: bool = False


@dataclass(slots=True)
class ClusterState:
    """State of a cluster, as far as a plan needs it.

    Attributes:
        brokers: live brokers → whether each is drained.
        same_secrets: names of keys that have the secret of their file.
        settings: live settings, also those that are not in use.
        setting_faults: reasons for which services refuse declared settings.
        unknown_settings: nodes or services whose live settings are unknown → reason.
        messages: topics that may be deleted → number of messages; None if unknown.
        members: groups that may be deleted → number of live members and clients.
        own_key: access key that signs the command's calls; empty if there is none.
    """

    brokers: Mapping[str, bool] = field(default_factory=dict)
    topics: Mapping[str, "TopicRoute"] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    keys: Mapping[str, "KeyDescription"] = field(default_factory=dict)
    same_secrets: frozenset[str] = frozenset()
    settings: Mapping[SettingName, "LiveSetting"] = field(default_factory=dict)
    setting_faults: Mapping[SettingName, str] = field(default_factory=dict)
    unknown_settings: Mapping[str, str] = field(default_factory=dict)
    messages: Mapping[str, int | None] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)
    own_key: str = ""


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A change of one object.

    Attributes:
        action: "create", "change" or "delete".
        kind: "topic", "group", "access key" or "setting".
        details: the fields that differ.
    """

    action: str
    kind: str
    name: str
    details: tuple[str, ...]
    make: Make = field(compare=False, repr=False)

    def __str__(self) -> str:
        details = f": {'; '.join(self.details)}" if self.details else ""
        return f"{self.action} {self.kind} {self.name}{details}"


@dataclass(slots=True)
class ResourcePlan:
    changes: list[ResourceChange] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def plan_of(resources: Resources, state: ClusterState, options: Options) -> ResourcePlan:
    """Return the plan: access keys after the objects that they permit, deletions last."""
    planner = _Planner(resources, state, options)
    for setting, resource in resources.settings.items():
        planner.setting(setting, resource)
    for name, resource in resources.topics.items():
        planner.topic(name, resource)
    for name, resource in resources.groups.items():
        planner.group(name, resource)
    for name, resource in resources.keys.items():
        planner.key(name, resource)
    if options.prune:
        planner.prune()
    return planner.plan


def prunable(
    declared: Mapping[Any, Resource], present: Mapping[Any, Any], owner: str
) -> dict[Any, Any]:
    """Return the objects that have the owner's mark and are not declared any more."""
    return {
        name: each
        for name, each in present.items()
        if owner == owner_of(each) and name not in declared and not str(name).startswith("%")
    }


def owner_of(present: Any) -> str:
    if isinstance(present, Group):
        present = present.config
    if hasattr(present, "attributes"):
        return str(present.attributes.get(OWNER, ""))
    return str(present.owner)


def topics_of(group: str) -> tuple[str, str]:
    """Return the names of a group's topics, which are deleted with it."""
    return retry_topic(group), dlq_topic(group)


def topic_fields(
    permissions: int, attributes: Mapping[str, str], queues: Mapping[str, int]
) -> Fields:
    return {
        "permissions": PERMISSION_NAMES.get(permissions, str(permissions)),
        **attribute_fields(attributes),
        **{f"queues on {broker}": str(count) for broker, count in queues.items() if count},
    }


def attribute_fields(attributes: Mapping[str, str]) -> Fields:
    return {
        name if name == OWNER else f"attribute {name}": value for name, value in attributes.items()
    }


def group_fields(config: GroupConfig) -> Fields:
    """Return the values in effect."""
    values = {row.name: row.get(config) for row in GROUP_SETTINGS}
    defaults = {row.name: row.default for row in GROUP_SETTINGS}
    return {
        **{name: cell(defaults[name] if each is None else each) for name, each in values.items()},
        "from": policy_text(config),
        "retry_delays": delays_text(config) or "",
        "paused": cell(config.consume_disabled),
        **attribute_fields(config.attributes),
    }


def key_fields(
    permissions: "Iterable[Permission]", description: str, *, disabled: bool, owner: str
) -> Fields:
    return {
        **{each.resource: str(each).partition("=")[2] for each in permissions},
        "description": description,
        "disabled": "yes" if disabled else "",
        OWNER: owner,
    }


def differences(before: Fields | None, after: Fields) -> tuple[str, ...]:
    """Return a text for each field that differs; for a new object each field with a value."""
    old = before or {}
    return tuple(
        f"{name} {after.get(name)}"
        if before is None
        else f"{name} {old.get(name) or '-'} -> {after.get(name) or '-'}"
        for name in sorted(old.keys() | after.keys())
        if old.get(name, "") != after.get(name, "")
    )


class _Planner:
    def __init__(self, resources: Resources, state: ClusterState, options: Options) -> None:
        self.plan = ResourcePlan()
        self._resources = resources
        self._owner = resources.owner
        self._mark = {OWNER: self._owner} if self._owner else {}
        self._state = state
        self._options = options

    def topic(self, name: str, topic: Resource) -> None:
        route = self._state.topics.get(name)
        config = topic_config(name, topic.fields)
        config.attributes.update(self._mark)
        present = Counter(queue.broker for queue in route.queues) if route else Counter[str]()
        queues = self._queues(topic, present, is_new=route is None)
        wanted = dict(config.attributes)
        after = topic_fields(config.permissions, wanted, queues)
        if route is None:
            make = partial(
                Admin.create_topic,
                name=name,
                queues_per_broker=topic.fields.get("queues", QUEUES_DEFAULT),
                placements=topic.fields.get("placements"),
                permissions=config.permissions,
                attributes=wanted,
            )
            self._change("topic", name, topic, None, after, make)
            return
        for broker in present:
            if queues[broker] < present[broker]:
                self._refuse(
                    topic.location,
                    f"topic {name!r} has {counted(present[broker], 'queue')} on {broker}, not "
                    f"{queues[broker]}: queues are not removed, because they may have messages",
                )
        removed = dict.fromkeys(route.attributes.keys() - wanted.keys(), "")
        make = partial(
            Admin.update_topic,
            name=name,
            add=dict((queues - present).items()),
            permissions=config.permissions,
            attributes=wanted | removed,
            expected_modified_revision=route.modified_revision,
        )
        before = topic_fields(route.permissions, route.attributes, present)
        self._change("topic", name, topic, before, after, make)

    def _queues(self, topic: Resource, present: Counter[str], *, is_new: bool) -> Counter[str]:
        """Return the number of queues that a topic should have on each broker."""
        live = self._state.brokers
        placements = topic.fields.get("placements")
        if placements is not None:
            for broker in placements:
                if placements[broker] > present[broker] and broker not in live:
                    self._refuse(topic.location, f"broker {broker!r} is not live")
            return Counter(placements)
        if "queues" not in topic.fields and not is_new:
            return present
        count = topic.fields.get("queues", QUEUES_DEFAULT)
        wanted = dict.fromkeys([name for name, drained in live.items() if not drained], count)
        return Counter(
            wanted | {each: min(present[each], count) for each in present if each not in wanted}
        )

    def group(self, name: str, group: Resource) -> None:
        known = self._state.groups.get(name)
        config = group_config(name, group.fields)
        config.attributes.update(self._mark)
        if known is None:
            make = partial(Admin.create_group, config=config)
            chosen = group_fields(config).items() - group_fields(GroupConfig()).items()
            self._change("group", name, group, None, dict(chosen), make)
            return
        if "paused" not in group.fields:
            config.consume_disabled = known.config.consume_disabled
        make = partial(
            Admin.update_group, config=config, expected_modified_revision=known.modified_revision
        )
        self._change("group", name, group, group_fields(known.config), group_fields(config), make)

    def key(self, name: str, key: Resource) -> None:
        known, fields = self._state.keys.get(name), key.fields
        permissions, description = fields.get("permissions", ()), fields.get("description", "")
        disabled = fields.get("disabled", known.disabled if known else False)
        path, secret = fields.get("secret_file", (None, ""))
        after = key_fields(permissions, description, disabled=disabled, owner=self._owner)
        before = None
        if known is not None:
            before = key_fields(
                known.permissions, known.description, disabled=known.disabled, owner=known.owner
            )
            if secret and name not in self._state.same_secrets:
                before["secret"], after["secret"] = "another", f"that of {path}"
        elif not secret:
            self._refuse(key.location, f"access key {name!r} does not exist: add its secret_file")
        if name == self._state.own_key and (disabled or "admin" not in after.get("cluster", "")):
            reason = "signs the calls of this command: it needs cluster=admin"
            self._refuse(key.location, f"access key {name!r} {reason}")

        expected = known.modified_revision if known else 0

        async def make(admin: Admin) -> None:
            keys = admin.access_keys
            if known is None:
                await keys.create(name, permissions, description, secret=secret, owner=self._owner)
            await keys.update(
                name,
                grant=permissions,
                revoke=beyond(known.permissions, permissions) if known else (),
                disabled=fields.get("disabled"),
                description=description,
                owner=self._owner,
                expected_modified_revision=expected,
            )
            if "secret" in after:
                await keys.rotate(name, secret=secret)

        self._change("access key", name, key, before, after, make)

    def setting(self, name: SettingName, setting: Resource) -> None:
        known = self._state.settings.get(name)
        if name in self._state.setting_faults:
            self._refuse(setting.location, f"{shown(name)}: {self._state.setting_faults[name]}")
        value = setting.fields["value"]
        before = {"value": known.value, OWNER: known.owner} if known else None
        after = {"value": value, OWNER: self._owner}
        service, key, node = name

        def make(admin: Admin) -> Awaitable[object]:
            return admin.settings.set(
                service,
                key,
                value,
                node,
                owner=self._owner,
                expected_modified_revision=known.modified_revision if known else ABSENT_REVISION,
            )

        self._change("setting", shown(name), setting, before, after, make)

    def prune(self) -> None:
        declared, state = self._resources, self._state
        for name in self._prune(
            "access key",
            declared.keys,
            state.keys,
            lambda name, key, a: a.access_keys.delete(
                name, expected_modified_revision=key.modified_revision
            ),
        ):
            if name == state.own_key:
                self._refuse(f"access key {name}", "it signs the calls of this command")
        for name in self._prune(
            "group",
            declared.groups,
            state.groups,
            lambda name, group, a: a.delete_group(
                name, expected_modified_revision=group.modified_revision
            ),
        ):
            if members := state.members.get(name, 0):
                self._refuse(f"group {name}", f"it has {counted(members, 'live member')}")
            self._keep_messages(f"group {name}", topics_of(name))
        for name in self._prune(
            "topic",
            declared.topics,
            state.topics,
            lambda name, route, a: a.delete_topic(
                name, expected_modified_revision=route.modified_revision
            ),
        ):
            self._keep_messages(f"topic {name}", (name,))
        self._prune(
            "setting",
            declared.settings,
            state.settings,
            lambda name, setting, a: a.settings.unset(
                *name, expected_modified_revision=setting.modified_revision
            ),
        )
        for node, reason in state.unknown_settings.items():
            self._refuse(f"setting of {node}", f"--prune needs all live settings: {reason}")

    def _prune(
        self,
        kind: str,
        declared: Mapping[Any, Resource],
        present: Mapping[Any, Any],
        delete: Callable[[Any, Any, Admin], Awaitable[object]],
    ) -> list[str]:
        """Plan the deletions of a kind; return their names."""
        left = prunable(declared, present, self._owner)
        made = [
            ResourceChange("delete", kind, shown(name), (), partial(delete, name, each))
            for name, each in left.items()
        ]
        self.plan.changes += made
        return [each.name for each in made]

    def _keep_messages(self, what: str, topics: Iterable[str]) -> None:
        """Refuse a deletion if one of the topics has messages."""
        for topic in topics:
            count = self._state.messages.get(topic, 0)
            if count != 0 and not self._options.delete_messages:
                held = "unknown messages" if count is None else counted(count, "message")
                self._refuse(what, f"topic {topic!r} has {held}: add --delete-messages")

    def _change(
        self,
        kind: str,
        name: str,
        resource: Resource,
        before: Fields | None,
        after: Fields,
        make: Make,
    ) -> None:
        owner = (before or {}).get(OWNER, "")
        if owner not in ("", self._owner) and not self._options.adopt:
            self._refuse(
                resource.location, f"{kind} {name!r} belongs to owner {owner!r}: add --adopt"
            )
        details = differences(before, after)
        if details or before is None:
            action = "create" if before is None else "change"
            self.plan.changes.append(ResourceChange(action, kind, name, details, make))

    def _refuse(self, location: str, reason: str) -> None:
        self.plan.refusals.append(f"{location}: {reason}")


def beyond(present: "Iterable[Permission]", wanted: "Iterable[Permission]") -> "list[Permission]":
    """Return the present permissions that are not wanted."""
    kept = {each.resource: each.actions for each in wanted}
    left = [
        replace(each, actions=each.actions - kept.get(each.resource, set())) for each in present
    ]
    return [each for each in left if each.actions]


def shown(name: str | SettingName) -> str:
    if isinstance(name, str):
        return name
    service, key, node = name
    return f"{service}/{node} {key}" if node else f"{service} {key}"
