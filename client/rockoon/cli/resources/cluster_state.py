"""State of a cluster that a plan compares with resources, and the changes of the plan.

Several runs may change a cluster at the same time, and a run may end at any point: each change is
one call that the cluster makes or refuses as a whole, and the next run makes the others.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from rockoon.cli.failures import CommandError
from rockoon.cli.output import counted
from rockoon.cli.resources.fields import SERVICES, Resources, SettingName
from rockoon.cli.resources.plan import (
    ClusterState,
    Options,
    ResourceChange,
    ResourcePlan,
    plan_of,
    prunable,
    topics_of,
)
from rockoon.errors import (
    AccessKeyChanged,
    AccessKeyExists,
    AccessKeyNotFound,
    BrokerNotFound,
    GatewayUnavailable,
    GroupChanged,
    GroupExists,
    GroupNotFound,
    InvalidArgument,
    NotPermitted,
    OffsetServiceUnavailable,
    RockoonError,
    SettingChanged,
    TopicChanged,
    TopicExists,
    TopicNotFound,
)
from rockoon.net.access import AccessKey
from rockoon_core.clock import Backoff
from rockoon_proto.v1.nameserver_pb2 import BROKER
from rockoon_proto.v1.settings_pb2 import LiveSetting

if TYPE_CHECKING:
    from rockoon.admin.access_keys import KeyDescription
    from rockoon.admin.admin import Admin
    from rockoon.cluster import Cluster

ROUNDS_MAX = 8
# Errors of a change that another run has made, or that was planned from old state.
OUTDATED = (
    AccessKeyChanged,
    AccessKeyExists,
    AccessKeyNotFound,
    GroupChanged,
    GroupExists,
    GroupNotFound,
    # A permission to revoke, or a live setting to remove, is there no more.
    InvalidArgument,
    SettingChanged,
    TopicChanged,
    TopicExists,
    TopicNotFound,
)


async def plan(
    cluster: "Cluster", resources: Resources, options: Options, *, done: int = 0
) -> ResourcePlan:
    """Compare a cluster with resources. `done`: number of changes that this run has made. Raises
    CommandError: a change is refused; the text has all reasons."""
    made = plan_of(resources, await read_state(cluster, resources, options), options)
    refuse(made.refusals, done)
    return made


def refuse(reasons: Iterable[str], done: int = 0) -> None:
    """Raise CommandError, if there are reasons; `done` as in `plan`."""
    if lines := list(dict.fromkeys(reasons)):
        made = f"{counted(done, 'change')} made, and the others are refused"
        raise CommandError("\n  ".join([made if done else "nothing is applied", *lines]))


async def apply(
    cluster: "Cluster",
    resources: Resources,
    options: Options,
    report: Callable[[ResourceChange], None],
) -> list[ResourceChange]:
    """Make the changes that a cluster needs; return them. `report`: called after each change.
    Raises CommandError: a change is refused, or failed; the text has the number of changes made."""
    done: list[ResourceChange] = []
    backoff = Backoff()
    for attempt in range(1, ROUNDS_MAX + 1):
        try:
            changes = (await plan(cluster, resources, options, done=len(done))).changes
        except RockoonError as failure:
            if not done:
                raise
            raise _unfinished(str(failure), len(done)) from None
        for change in changes:
            try:
                await change.make(cluster.admin)
            except RockoonError as failure:
                if isinstance(failure, OUTDATED) and attempt < ROUNDS_MAX:
                    break
                step = f"{change.action} {change.kind} {change.name}"
                raise _unfinished(f"{step}: {failure}", len(done)) from None
            done.append(change)
            report(change)
        else:
            break
        # Nameservers may not have the other change yet.
        await asyncio.sleep(backoff.next_seconds())
    return done


def _unfinished(reason: str, done: int) -> CommandError:
    made = f"{counted(done, 'change')} made: repeat the command for the others"
    return CommandError(f"{reason}; {made}")


async def read_state(cluster: "Cluster", resources: Resources, options: Options) -> ClusterState:
    """Return the state; objects of kinds that are neither declared nor deleted are left out."""
    admin, prune = cluster.admin, options.prune
    routes = await admin.list_topics(include_system=prune)
    access = cluster.access
    state = ClusterState(
        brokers={each.name: each.drained for each in cluster.routes.nodes if each.kind == BROKER},
        topics={each.name: each for each in routes},
        groups={each.group.config.name: each.group for each in await admin.list_groups()},
        own_key=access.key_id if access else "",
    )
    if resources.keys or prune:
        state.keys = await _keys(admin, is_needed=bool(resources.keys))
        state.same_secrets = await _same_secrets(admin, resources, state.keys)
    services = {service for service, _, _ in resources.settings}
    if services or prune:
        state.settings, unknown = await _settings(admin, services, prune=prune)
        state.unknown_settings = unknown
        state.setting_faults = await _setting_faults(admin, resources, state.settings)
    if prune:
        groups = prunable(resources.groups, state.groups, resources.owner)
        topics = [*prunable(resources.topics, state.topics, resources.owner)]
        topics += [each for group in groups for each in topics_of(group)]
        state.messages = {
            each: await _messages(admin, each) for each in topics if each in state.topics
        }
        state.members = {each: await _members(admin, each) for each in groups}
    return state


async def _keys(admin: "Admin", *, is_needed: bool) -> dict[str, "KeyDescription"]:
    try:
        return {each.id: each for each in await admin.access_keys.list()}
    except (InvalidArgument, NotPermitted):
        # Access keys are off, or the caller cannot have created one.
        if is_needed:
            raise
        return {}


async def _same_secrets(
    admin: "Admin", resources: Resources, keys: Mapping[str, "KeyDescription"]
) -> frozenset[str]:
    declared = {
        name: key.fields["secret_file"][1]
        for name, key in resources.keys.items()
        if name in keys and "secret_file" in key.fields
    }
    return frozenset(
        [
            name
            for name, secret in declared.items()
            if await admin.access_keys.has_secret(AccessKey(name, secret))
        ]
    )


async def _settings(
    admin: "Admin", declared: Iterable[str], *, prune: bool
) -> tuple[dict[SettingName, LiveSetting], dict[str, str]]:
    """Return the live settings, and the services and nodes whose live settings are unknown, with
    the reasons."""
    found: dict[SettingName, LiveSetting] = {}
    unknown = {}
    for service in SERVICES if prune else declared:
        try:
            processes = await admin.settings.describe(service)
        except NotPermitted:
            # The caller cannot have stored a live setting.
            if service in declared:
                raise
            continue
        except (BrokerNotFound, OffsetServiceUnavailable) as failure:
            if service in declared:
                raise
            unknown[service] = str(failure)
            continue
        except GatewayUnavailable:
            # Gateways are optional.
            if service in declared:
                raise
            continue
        answered = {each.node for each in processes if each.error is None}
        for process in processes:
            found.update({(service, each.name, each.node): each for each in process.stored})
            # No operator can have stored a setting of a gateway without an address.
            if process.node not in answered and process.address:
                unknown[f"{service} {process.node or process.process}"] = str(process.error)
    return found, unknown


async def _setting_faults(
    admin: "Admin", resources: Resources, stored: Mapping[SettingName, LiveSetting]
) -> dict[SettingName, str]:
    faults = {}
    for key, setting in resources.settings.items():
        known, value = stored.get(key), setting.fields["value"]
        if known is None or known.value != value:
            service, name, node = key
            try:
                await admin.settings.check(service, name, value, node)
            except RockoonError as failure:
                faults[key] = str(failure)
    return faults


async def _members(admin: "Admin", group: str) -> int:
    """Return the number of members and of clients that acknowledge message by message."""
    try:
        return len(await admin.members(group)) + len(await admin.list_clients(group))
    except GroupNotFound:  # another run has deleted it
        return 0


async def _messages(admin: "Admin", topic: str) -> int | None:
    """Return the number of messages of a topic; None if a broker does not answer."""
    count = 0
    with contextlib.suppress(TopicNotFound):  # another run has deleted it
        for queue in (await admin.describe_topic(topic)).queues:
            if queue.state is None:
                return None
            count += queue.state.max_offset - queue.state.min_offset
    return count
