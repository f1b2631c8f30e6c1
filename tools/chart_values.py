"""JSON schema and documentation of the Helm chart's values, from the comments of values.yaml."""

import dataclasses
import json
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.generate_settings import SERVICES

CHART = Path(__file__).resolve().parent.parent / "deploy/helm/rockoon"
# A key of values.yaml, with what follows it.
KEY = re.compile(r"( *)(\w+):(?: .*)?")
CHOICES = {
    "image.pullPolicy": ["", "Always", "IfNotPresent", "Never"],
    "externalAccess.serviceType": ["LoadBalancer", "NodePort", "ClusterIP"],
}
QUANTITIES = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


@dataclass
class Value:
    """A value that has a comment `# -- ...`.

    Attributes:
        path: its keys, joined by dots.
        meaning: the comment.
        default: its value in values.yaml.
    """

    path: str
    meaning: str
    default: Any


def values() -> list[Value]:
    """Every value, in the order of values.yaml.

    Raises:
        ValueError: a value has no comment.
    """
    text = (CHART / "values.yaml").read_text()
    whole = yaml.safe_load(text)
    found: list[Value] = []
    parents: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("# "):
            comment.append(line.strip().removeprefix("# "))
        elif match := KEY.fullmatch(line):
            depth = len(match[1]) // 2
            parents[depth:] = [match[2]]
            path = ".".join(parents)
            if comment and comment[0].startswith("-- "):
                default = whole
                for key in parents:
                    default = default[key]
                found.append(Value(path, " ".join(comment).removeprefix("-- "), default))
            elif not any(path.startswith(f"{each.path}.") for each in found[-1:]):
                require_group(whole, parents)
            comment = []
        else:
            comment = []
    return found


def require_group(whole: Any, parents: list[str]) -> None:
    place = whole
    for key in parents:
        place = place[key]
    if not isinstance(place, dict) or not place:
        raise ValueError(f"values.yaml: {'.'.join(parents)} has no comment `# -- ...`")


def schema() -> str:
    """The text of values.schema.json. Unknown values are refused."""
    root = group()
    # Helm adds it to the values of a chart that another chart includes.
    root["properties"]["global"] = {"type": "object"}
    for value in values():
        place = root
        *parents, last = value.path.split(".")
        for key in parents:
            place = place["properties"].setdefault(key, group())
        place["properties"][last] = {"description": value.meaning} | described(value)
    return written({"$schema": "http://json-schema.org/draft-07/schema#"} | root) + "\n"


def written(place: dict[str, Any], indent: int = 0) -> str:
    """JSON with a line for each property."""
    if "properties" not in place:
        return json.dumps(place)
    pad = " " * (indent + 2)
    head = {key: value for key, value in place.items() if key != "properties"}
    properties = [
        f"{pad}{json.dumps(key)}: {written(value, indent + 2)}"
        for key, value in place["properties"].items()
    ]
    body = ",\n".join(properties)
    return f'{json.dumps(head)[:-1]}, "properties": {{\n{body}\n{pad[2:]}}}}}'


def group() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def described(value: Value) -> dict[str, Any]:
    """The schema of one value."""
    service, _, last = value.path.rpartition(".")
    if last == "settings":
        fields = dataclasses.fields(SERVICES[service])
        hints = typing.get_type_hints(SERVICES[service])
        allowed = {
            field.name: setting(hints[field.name], field.metadata)
            for field in fields
            if not field.metadata["secret"]
        }
        return group() | {"properties": allowed}
    if last == "resources":
        return group() | {"properties": {"requests": QUANTITIES, "limits": QUANTITIES}}
    if value.path in CHOICES:
        return {"enum": CHOICES[value.path]}
    if isinstance(value.default, dict):
        return {"type": "object"}
    if type(value.default) is int:
        return {"type": "integer", "minimum": 1}
    return {"type": TYPES[type(value.default)]}


def setting(kind: Any, bounds: typing.Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a service's setting, as its file may have it."""
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if bounds["choices"]:
        return {"enum": list(bounds["choices"])}
    if typing.get_origin(kind) is tuple:
        return {"type": "array", "items": {"type": "string"}}
    name = TYPES.get(kind, "string")
    limits = {key: bounds[key] for key in ("minimum", "maximum") if bounds[key] is not None}
    # An integer may be a size, "64MiB".
    return {"type": [name, "string"] if kind is int else name} | limits


def table() -> str:
    """The lines of a table with every value; services share a line if their meaning is the same."""
    shared: dict[tuple[str, str], list[Value]] = {}
    for value in values():
        last = value.path.rpartition(".")[2]
        shared.setdefault((last, value.meaning), []).append(value)
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for (_, meaning), group_of_values in shared.items():
        names = ", ".join(f"`{each.path}`" for each in group_of_values)
        defaults = {json.dumps(each.default) for each in group_of_values}
        default = f"`{defaults.pop()}`" if len(defaults) == 1 else "values.yaml"
        lines.append(f"| {names} | {default} | {meaning} |")
    return "\n".join(lines)
