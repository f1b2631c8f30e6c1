"""Fields of resources: names, types and bounds. Decides from files alone, without a cluster.

A field that is absent means its default. If `queues`, `paused`, `disabled` or `secret_file` is
absent, the cluster keeps its value.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import typer

from rockoon.admin.access_keys import Permission
from rockoon.cli.arguments import parse_duration, parse_start, unknown
from rockoon.cli.resources.files import FileValue
from rockoon.cli.topics import PERMISSIONS
from rockoon.errors import RockoonError
from rockoon_core.group_settings import GROUP_SETTINGS
from rockoon_core.key_checks import OWNER_NAME, check_description, check_key_id, granted
from rockoon_core.pem_files import PemError
from rockoon_core.route_checks import QUEUES_PER_BLOCK_MAX, checked_group, checked_topic
from rockoon_core.secret_files import read_secrets
from rockoon_format.topic_attributes import OWNER, attribute_fault, unknown_attribute_fault
from rockoon_proto.v1.nameserver_pb2 import (
    CONSUME_FROM_TIMESTAMP,
    GroupConfig,
    StartPolicy,
    TopicConfig,
)

SettingName = tuple[str, str, str]
"""Service, name and node of a live setting; the node is empty for all nodes."""
Convert = Callable[[FileValue], Any]
"""Returns the value of a field. Raises FieldError, or the error of a check."""

SERVICES = ("broker", "offset", "nameserver", "gateway")
TRUTH = {"yes": True, "no": False, "true": True, "false": False}
# Without a zone, the meaning of a time would depend on the machine.
_ZONED = re.compile(r"\d{11,13}|.*(Z|[+-]\d\d:?\d\d)")


class FieldError(Exception):
    """Raised if a value is not valid.

    Args:
        sentence: the fault and the expected value.
        location: location of the value; None: that of the field.
    """

    def __init__(self, sentence: str, location: str | None = None) -> None:
        super().__init__(sentence)
        self.location = location


@dataclass(frozen=True, slots=True)
class Resource:
    """A declared object.

    Attributes:
        location: "FILE:LINE".
        fields: the fields that the file has, by name.
    """

    location: str
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class Resources:
    """Objects that files declare.

    Attributes:
        owner: name that marks the objects; empty: no mark.
        faults: a sentence for each fault, with its location.
    """

    owner: str = ""
    topics: dict[str, Resource] = field(default_factory=dict)
    groups: dict[str, Resource] = field(default_factory=dict)
    keys: dict[str, Resource] = field(default_factory=dict)
    settings: dict[SettingName, Resource] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def text(node: FileValue) -> str:
    if not isinstance(node.value, str):
        raise FieldError("expected a text or a number", node.location)
    return node.value


def number(low: int, high: int) -> Convert:
    def convert(node: FileValue) -> int:
        value = text(node)
        if not (value.isascii() and value.isdecimal() and low <= int(value[:19]) <= high):
            raise FieldError(f"{value!r} is not a number from {low} to {high}", node.location)
        return int(value)

    return convert


def one_of(words: Mapping[str, Any]) -> Convert:
    def convert(node: FileValue) -> Any:
        value = text(node)
        if value not in words:
            raise FieldError(f"{value!r} is not one of {', '.join(words)}", node.location)
        return words[value]

    return convert


def items(convert: Convert) -> Convert:
    def convert_all(node: FileValue) -> list[Any]:
        if not isinstance(node.value, list):
            raise FieldError("expected a list", node.location)
        return [convert(each) for each in node.value]

    return convert_all


def pairs(convert: Convert) -> Convert:
    return lambda node: {name: convert(each) for name, each in children(node).items()}


def children(node: FileValue) -> dict[str, FileValue]:
    if node.value is None:
        return {}
    if not isinstance(node.value, dict):
        raise FieldError("expected NAME: VALUE pairs", node.location)
    return node.value


def attributes(
    node: FileValue, fault: Callable[[str, str], str | None] = lambda _name, _value: None
) -> dict[str, str]:
    found: dict[str, str] = pairs(text)(node)
    for name, each in children(node).items():
        if name == OWNER:
            raise FieldError(f"{OWNER} is set by `owner` at the top of the file", each.location)
        if not found[name]:
            raise FieldError(f"{name!r} has no value", each.location)
        if reason := fault(name, found[name]):
            raise FieldError(reason, each.location)
    return found


def topic_attributes(node: FileValue) -> dict[str, str]:
    return attributes(
        node, lambda *each: unknown_attribute_fault(each[0]) or attribute_fault(*each)
    )


def start(node: FileValue) -> StartPolicy:
    value = text(node)
    policy = parse_start(value)
    if policy.kind == CONSUME_FROM_TIMESTAMP and not _ZONED.fullmatch(value):
        raise FieldError(f"{value!r} has no zone: write {value}Z", node.location)
    return policy.to_wire()


def permissions(node: FileValue) -> list[Permission]:
    found = [Permission.parse(each) for each in items(text)(node)]
    if len({each.resource for each in found}) < len(found):
        raise FieldError("a resource occurs twice", node.location)
    granted((), [each.to_wire() for each in found])
    return found


def secret_file(node: FileValue) -> tuple[Path, str]:
    """Return the path, which is relative to the file that names it, and the secret."""
    path = Path(node.location.rpartition(":")[0]).parent / text(node)
    return path, read_secrets(path)[0]


def value_of_setting(node: FileValue) -> str:
    listed = node.value if isinstance(node.value, list) else [node]
    return ",".join(map(text, listed))


TOPIC: dict[str, Convert] = {
    "queues": number(1, QUEUES_PER_BLOCK_MAX),
    "placements": pairs(number(1, QUEUES_PER_BLOCK_MAX)),
    "permissions": one_of(PERMISSIONS),
    "attributes": topic_attributes,
}
GROUP: dict[str, Convert] = {
    "from": start,
    "retry_delays": items(lambda node: parse_duration(text(node))),
    "paused": one_of(TRUTH),
    "attributes": attributes,
}
for _row in GROUP_SETTINGS:
    _words = TRUTH if _row.words.keys() == {"yes", "no"} else _row.words
    GROUP[_row.name] = one_of(_words) if _words else number(0, _row.maximum)
KEY: dict[str, Convert] = {
    "secret_file": secret_file,
    "permissions": permissions,
    "description": text,
    "disabled": one_of(TRUTH),
}


def topic_config(name: str, fields: Mapping[str, Any]) -> TopicConfig:
    """Return the configuration of a topic, without its queues and its owner."""
    bits = fields.get("permissions", PERMISSIONS["rw"])
    return TopicConfig(name=name, permissions=bits, attributes=fields.get("attributes"))


def group_config(name: str, fields: Mapping[str, Any]) -> GroupConfig:
    """Return the configuration of a group, without its owner."""
    settings = {row.name: fields[row.name] for row in GROUP_SETTINGS if row.name in fields}
    return GroupConfig(
        name=name,
        start_policy=fields.get("from"),
        retry_delays_ms=fields.get("retry_delays"),
        consume_disabled=fields.get("paused", False),
        attributes=fields.get("attributes"),
        **settings,
    )


def check_topic(name: str, fields: Mapping[str, Any]) -> None:
    if name.startswith("%"):
        raise FieldError("topics whose names start with % are internal")
    if fields.keys() >= {"queues", "placements"}:
        raise FieldError("use queues or placements, not both")
    checked_topic(topic_config(name, fields))


def check_key(name: str, fields: Mapping[str, Any]) -> None:
    check_key_id(name)
    check_description(fields.get("description", ""))


SECTIONS: dict[str, tuple[str, Mapping[str, Convert], Callable[[str, Mapping[str, Any]], Any]]] = {
    "topics": ("topic", TOPIC, check_topic),
    "groups": ("group", GROUP, lambda name, fields: checked_group(group_config(name, fields))),
    "access_keys": ("access key", KEY, check_key),
}


def resources_of(documents: Iterable[FileValue]) -> Resources:
    """Return the resources of all documents, with all their faults."""
    found = Resources()
    convert: dict[str, Convert] = {
        "owner": partial(_owner, found),
        "topics": partial(_objects, found, "topics", found.topics),
        "groups": partial(_objects, found, "groups", found.groups),
        "access_keys": partial(_objects, found, "access_keys", found.keys),
        "settings": partial(_settings, found),
    }
    for document in documents:
        _fields(found, "section", document, convert)
    return found


def _owner(found: Resources, node: FileValue) -> None:
    owner = text(node)
    if not OWNER_NAME.fullmatch(owner):
        raise FieldError(f"{owner!r} is not 1 to 64 letters, digits and . _ -")
    if found.owner not in ("", owner):
        raise FieldError(f"{owner!r} is not {found.owner!r} of another file")
    found.owner = owner


def _objects(found: Resources, section: str, known: dict[str, Resource], node: FileValue) -> None:
    kind, table, check = SECTIONS[section]
    for name, each in children(node).items():
        faults = len(found.faults)
        resource = Resource(
            each.location, _fields(found, f"field of {kind} {name!r}:", each, table)
        )
        if len(found.faults) == faults:
            _run(found, f"{kind} {name!r}", each.location, partial(check, name, resource.fields))
        _add(found, f"{kind} {name!r}", known, name, resource)


def _settings(found: Resources, node: FileValue) -> None:
    for scope, each in children(node).items():
        service, _, of_node = scope.partition("/")
        if service not in SERVICES:
            raise FieldError(unknown("service", service, SERVICES), each.location)
        for name, value in children(each).items():
            resource = Resource(value.location, {"value": value_of_setting(value)})
            what = f"setting {name!r} of {scope}"
            _add(found, what, found.settings, (service, name, of_node), resource)


def _add(
    found: Resources, what: str, known: dict[Any, Resource], name: Any, resource: Resource
) -> None:
    first = known.setdefault(name, resource)
    if first is not resource:
        found.faults.append(f"{resource.location}: {what} is declared at {first.location} as well")


def _fields(
    found: Resources, kind: str, node: FileValue, table: Mapping[str, Convert]
) -> dict[str, Any]:
    fields = {}
    for name, each in (_run(found, kind, node.location, partial(children, node)) or {}).items():
        if name not in table:
            found.faults.append(f"{each.location}: {unknown(kind, name, table)}")
        else:
            fields[name] = _run(found, name, each.location, partial(table[name], each))
    return fields


def _run(found: Resources, what: str, location: str, make: Callable[[], Any]) -> Any:
    """Return a result; None if it raises, which adds a fault."""
    try:
        return make()
    except FieldError as failure:
        location, reason = failure.location or location, str(failure)
    except typer.BadParameter as failure:
        reason = failure.message
    except (RockoonError, PemError) as failure:
        reason = str(failure)
    found.faults.append(f"{location}: {what}: {reason}")
    return None
