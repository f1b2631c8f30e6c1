"""Files of resources, YAML or JSON, as trees of values with their locations.

Scalars stay text, so that YAML's rules for `yes`, `012` or `12:30` change no value.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rockoon.cli.failures import CommandError

if TYPE_CHECKING:
    import yaml

SUFFIXES = (".json", ".yaml", ".yml")
DEPTH_MAX = 8
# Tokens of a text that is known to be JSON.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+|\n')

Tree: TypeAlias = "str | list[FileValue] | dict[str, FileValue] | None"


class FileError(CommandError):
    """Raised if a file cannot be read; the text has its location."""


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value of a file.

    Attributes:
        value: text of a scalar, None for null, or the values below.
        location: "FILE:LINE"; in a mapping the line of the key.
    """

    value: Tree
    location: str


def read_files(paths: Iterable[Path]) -> list[FileValue]:
    """Return the documents of files, and of the files in directories, in the order of their names.

    Raises:
        FileError: a file is empty, or neither YAML nor JSON, or PyYAML is not installed.
        CommandError: a directory has no file of these types.
        OSError: a file cannot be read.
    """
    return [document for path in paths for file in _files(path) for document in _read(file)]


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    # Kubernetes mounts a ConfigMap with hidden directories beside the links to its files.
    found = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    # A link to a missing file stays: without that file, its objects would be pruned.
    found = [each for each in found if each.suffix in SUFFIXES and not each.is_dir()]
    if not found:
        raise CommandError(f"{path} has no file with the suffix {', '.join(SUFFIXES)}")
    return found


def _read(file: Path) -> list[FileValue]:
    try:
        text = file.read_text(encoding="utf-8")
        found = _of_json(text, file) if file.suffix == ".json" else _of_yaml(text, file)
    except UnicodeDecodeError as failure:
        raise FileError(f"{file}: it is not UTF-8: {failure.reason}") from None
    except RecursionError:
        raise FileError(f"{file}: it is nested too deeply") from None
    if all(each.value is None for each in found):
        # The file may not be written yet.
        raise FileError(
            f"{file}: it is empty: delete the file, or write an empty section, as `topics: {{}}`"
        )
    return found


def _of_json(text: str, file: Path) -> list[FileValue]:
    try:
        json.loads(text)
    except json.JSONDecodeError as failure:
        raise FileError(f"{file}:{failure.lineno}: {failure.msg}") from None
    return [_json_value(_tokens(text, file))]


def _tokens(text: str, file: Path) -> Iterator[FileValue]:
    """Yield the tokens with their locations, without separators."""
    line = 1
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token == "\n":
            line += 1
        elif token not in ",:":
            yield FileValue(token, f"{file}:{line}")


def _json_value(tokens: Iterator[FileValue], first: FileValue | None = None) -> FileValue:
    start = first or next(tokens)
    token = str(start.value)
    if token == "{":
        pairs = []
        for key in tokens:
            if key.value == "}":
                break
            pairs.append((json.loads(str(key.value)), key.location, _json_value(tokens)))
        return FileValue(_mapping(pairs), start.location)
    if token == "[":
        items = []
        for each in tokens:
            if each.value == "]":
                break
            items.append(_json_value(tokens, each))
        return FileValue(items, start.location)
    if token.startswith('"'):
        return FileValue(json.loads(token), start.location)
    return FileValue(None if token == "null" else token, start.location)


def _of_yaml(text: str, file: Path) -> list[FileValue]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise FileError(
            f"{file}: YAML needs PyYAML: `pip install 'rockoon[yaml]'`, or write the file as JSON "
            "with the suffix .json"
        ) from None
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        return [_yaml_value(each, file, 1) for each in documents if each is not None]
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark or failure.context_mark
        line = "" if mark is None else f":{mark.line + 1}"
        raise FileError(f"{file}{line}: {failure.problem or failure.context}") from None
    except yaml.YAMLError as failure:
        raise FileError(f"{file}: {failure}") from None


def _yaml_value(node: "yaml.Node", file: Path, depth: int) -> FileValue:
    import yaml

    location = f"{file}:{node.start_mark.line + 1}"
    if depth > DEPTH_MAX:
        raise FileError(f"{location}: it is nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return FileValue([_yaml_value(each, file, depth + 1) for each in node.value], location)
    if isinstance(node, yaml.MappingNode):
        pairs = []
        for key, value in node.value:
            key_location = f"{file}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise FileError(f"{key_location}: a key is not a text")
            pairs.append((key.value, key_location, _yaml_value(value, file, depth + 1)))
        return FileValue(_mapping(pairs), location)
    return FileValue(None if node.tag == "tag:yaml.org,2002:null" else node.value, location)


def _mapping(pairs: Iterable[tuple[str, str, FileValue]]) -> dict[str, FileValue]:
    """Return the values of a mapping by key. Raises FileError if a key occurs twice."""
    found: dict[str, FileValue] = {}
    for key, location, node in pairs:
        if key in found:
            raise FileError(
                f"{location}: {key!r} occurs twice; the first is at {found[key].location}"
            )
        found[key] = FileValue(node.value, location)
    return found
