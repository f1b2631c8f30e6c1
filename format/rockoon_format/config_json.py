"""The files under `config/`, and a client's own `offsets.json`.

Readers accept the files of any RocketMQ broker (see `parse_json`); writers produce strict JSON,
which Java reads as well. Absent fields have Java's defaults; null counts as absent. A topic's and
a group's unknown fields are kept in `extra` and written back; other unknown fields are ignored.

Source: ConfigManager, ConsumerOffsetManager, TopicConfigManager, SubscriptionGroupManager,
ScheduleMessageService, LocalFileOffsetStore.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

Json = Any
"""The result type of `json.loads`."""
DEPTH_MAX = 32
INTEGER_DIGITS_MAX = 40
_SPACE = re.compile(r"[ \t\r\n\f\v]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES = {
    '"': '"', "'": "'", "\\": "\\", "/": "/",
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0", "v": "\v",
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False, "null": None}


class ConfigError(ValueError):
    """A configuration text that cannot be read; `line` and `column` count from 1.

    Both are 0 if the text is JSON but a value has the wrong type; the message then names the value.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"line {line}, column {column}: {message}" if line else message)
        self.line = line
        self.column = column


def parse_json(content: bytes | str) -> Json:
    """Parse one JSON value as fastjson reads it.

    Brokers in Java write maps with unquoted integer keys, or with objects as keys, and accept
    single quotes, bare words as keys and trailing commas. Every key becomes a string: an integer
    its digits, an object its JSON text with sorted names. Raises ConfigError: not UTF-8, not JSON
    even by fastjson's rules, or nested deeper than 32.
    """
    if isinstance(content, bytes):
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            column = error.start - content.rfind(b"\n", 0, error.start)
            raise ConfigError("not UTF-8", line, column) from error
    else:
        text = content
    reader = _JsonCursor(text)
    value = reader.value(0)
    reader.skip_space()
    if reader.at < len(text):
        reader.fail("unexpected text after the value")
    return value


class _JsonCursor:
    """Parser of one JSON text; `at` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        position = self.at if at is None else at
        line = self._text.count("\n", 0, position) + 1
        column = position - self._text.rfind("\n", 0, position)
        raise ConfigError(message, line, column)

    def skip_space(self) -> None:
        match = _SPACE.match(self._text, self.at)
        assert match is not None
        self.at = match.end()

    def peek(self) -> str:
        self.skip_space()
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> Json:
        if depth > DEPTH_MAX:
            self.fail(f"nested deeper than {DEPTH_MAX}")
        first = self.peek()
        if first == "{":
            return self.object(depth)
        if first == "[":
            return self.array(depth)
        if first in ('"', "'"):
            return self.string()
        if match := _NUMBER.match(self._text, self.at):
            return self.number(match)
        match = _WORD.match(self._text, self.at)
        if match is None or match.group() not in _CONSTANTS:
            self.fail("expected a value" if first else "the text ends before a value")
        self.at = match.end()
        return _CONSTANTS[match.group()]

    def number(self, match: re.Match[str]) -> int | float:
        digits = match.group()
        if len(digits) > INTEGER_DIGITS_MAX:
            self.fail("a number with too many digits")
        self.at = match.end()
        return float(digits) if set(digits) & set(".eE") else int(digits)

    def object(self, depth: int) -> dict[str, Json]:
        self.at += 1
        result: dict[str, Json] = {}
        while self.peek() != "}":
            key = self.key(depth)
            if self.peek() != ":":
                self.fail("expected ':' after a key")
            self.at += 1
            result[key] = self.value(depth + 1)
            self.separator("}")
        self.at += 1
        return result

    def array(self, depth: int) -> list[Json]:
        self.at += 1
        result = []
        while self.peek() != "]":
            result.append(self.value(depth + 1))
            self.separator("]")
        self.at += 1
        return result

    def separator(self, closing: str) -> None:
        """Read one comma; without one, the closing bracket must be next."""
        if self.peek() == ",":
            self.at += 1
        elif self.peek() != closing:
            self.fail(f"expected ',' or '{closing}'")

    def key(self, depth: int) -> str:
        first = self.peek()
        if first in ('"', "'"):
            return self.string()
        if first == "{":
            if depth + 1 > DEPTH_MAX:
                self.fail(f"nested deeper than {DEPTH_MAX}")
            return json.dumps(self.object(depth + 1), sort_keys=True, ensure_ascii=False)
        match = _WORD.match(self._text, self.at) or _NUMBER.match(self._text, self.at)
        if match is None:
            self.fail("expected a key" if first else "the text ends inside an object")
        self.at = match.end()
        return match.group()

    def string(self) -> str:
        start = self.at
        quote = self._text[start]
        plain = _PLAIN[quote]
        self.at += 1
        pieces = []
        while True:
            match = plain.match(self._text, self.at)
            assert match is not None
            pieces.append(match.group())
            self.at = match.end()
            if self.at >= len(self._text):
                self.fail("a string that does not end", start)
            if self._text[self.at] == quote:
                self.at += 1
                break
            pieces.append(self.escape())
        text = "".join(pieces)
        if any("\ud800" <= character <= "\udfff" for character in text):
            # Combines the escaped halves of one character.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def escape(self) -> str:
        kind = self._text[self.at + 1 : self.at + 2]
        if kind in ("u", "x"):
            width = 4 if kind == "u" else 2
            digits = self._text[self.at + 2 : self.at + 2 + width]
            if not re.fullmatch(rf"[0-9a-fA-F]{{{width}}}", digits):
                self.fail("an escape without its hex digits")
            self.at += 2 + width
            return chr(int(digits, 16))
        if kind not in _ESCAPES:
            self.fail("an unknown escape")
        self.at += 2
        return _ESCAPES[kind]


__all__ = [
    "ConfigError",
    "ConsumerOffsets",
    "DataVersion",
    "DelayOffsets",
    "GroupConfig",
    "GroupConfigs",
    "GroupTopic",
    "LocalQueue",
    "OffsetFault",
    "TopicConfig",
    "TopicConfigs",
    "join_topics",
    "read_consumer_offsets",
    "read_delay_offsets",
    "read_groups",
    "read_local_offsets",
    "read_topics",
    "topic_text",
    "write_consumer_offsets",
    "write_delay_offsets",
    "write_groups",
    "write_local_offsets",
    "write_topics",
]

TOPIC_GROUP_SEPARATOR = "@"
PERM_PRIORITY, PERM_READ, PERM_WRITE, PERM_INHERIT = 8, 4, 2, 1


class GroupTopic(NamedTuple):
    group: str
    topic: str


class LocalQueue(NamedTuple):
    """A message queue as a broadcasting client names it."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a file; the higher one of two copies is newer."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0


class OffsetFault(NamedTuple):
    """An entry of `consumerOffset.json` that is not an offset.

    Attributes:
        key: of `offsetTable`; empty for a fault elsewhere in the file.
        place: position of the entry in the file, as text for error messages.
        reason: why the entry is invalid.
    """

    key: str
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """`consumerOffset.json`: for each group, topic and queue id, the next offset to consume.

    `faults` has the entries that could not be read.
    """

    offsets: Mapping[GroupTopic, Mapping[int, int]]
    data_version: DataVersion = DataVersion()
    faults: Sequence[OffsetFault] = ()


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """`delayOffset.json`: for each delay level (from 1), the next offset of its queue."""

    offsets: Mapping[int, int]
    data_version: DataVersion = DataVersion()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic of `topics.json`."""

    topic: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    ordered: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """`topics.json`: topics by name."""

    topics: Mapping[str, TopicConfig]
    data_version: DataVersion = DataVersion()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One group of `subscriptionGroup.json`."""

    group: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_orderly: bool = False
    retry_queues: int = 1
    retry_times_max: int = 16
    broker_id: int = 0
    broker_id_when_slow: int = 1
    notify_members_changed: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """`subscriptionGroup.json`: groups by name, and per group the bits of forbidden topics."""

    groups: Mapping[str, GroupConfig]
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


# Names in the files, and of the attributes here. Sorted by name, as in Java.
_TOPIC_FIELDS = {
    "attributes": "attributes",
    "order": "ordered",
    "perm": "perm",
    "readQueueNums": "read_queues",
    "topicFilterType": "filter_type",
    "topicName": "topic",
    "topicSysFlag": "sys_flag",
    "writeQueueNums": "write_queues",
}
_GROUP_FIELDS = {
    "attributes": "attributes",
    "brokerId": "broker_id",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeMessageOrderly": "consume_orderly",
    "consumeTimeoutMinute": "consume_timeout_minutes",
    "groupName": "group",
    "groupSysFlag": "sys_flag",
    "notifyConsumerIdsChangedEnable": "notify_members_changed",
    "retryMaxTimes": "retry_times_max",
    "retryQueueNums": "retry_queues",
    "whichBrokerWhenConsumeSlowly": "broker_id_when_slow",
}


def read_consumer_offsets(content: bytes | str) -> ConsumerOffsets:
    """Read `consumerOffset.json`. Entries that are not offsets are in `faults`. Raises ConfigError:
    not JSON, or no table of offsets."""
    root = _object(parse_json(content), "the file")
    offsets: dict[GroupTopic, dict[int, int]] = {}
    faults: list[OffsetFault] = []
    for key, queues in _object(root.get("offsetTable"), "offsetTable").items():
        topic, separator, group = key.partition(TOPIC_GROUP_SEPARATOR)
        if not topic or not separator or not group:
            faults.append(OffsetFault(key, f"key {key!r}", "it is not topic@group"))
        elif not isinstance(queues, dict):
            faults.append(OffsetFault(key, key, "it has no object of offsets by queue"))
        else:
            found = offsets[GroupTopic(group, topic)] = {}
            for queue_id, offset in queues.items():
                try:
                    found[_integer(queue_id, "queue")] = _integer(offset, "offset")
                except ConfigError as fault:
                    faults.append(OffsetFault(key, f"{key}, queue {queue_id}", str(fault)))
    version = DataVersion()
    try:
        version = _data_version(root)
    except ConfigError as fault:
        faults.append(OffsetFault("", "dataVersion", str(fault)))
    return ConsumerOffsets(offsets, version, tuple(faults))


def write_consumer_offsets(content: ConsumerOffsets) -> bytes:
    """Return the content of `consumerOffset.json`."""
    table = {
        f"{topic}{TOPIC_GROUP_SEPARATOR}{group}": _sorted_keys(queues)
        for (group, topic), queues in content.offsets.items()
    }
    return _write({**_versioned(content.data_version), "offsetTable": table})


def read_delay_offsets(content: bytes | str) -> DelayOffsets:
    """Read `delayOffset.json`. Raises ConfigError: not JSON, or a value is not a number."""
    root = _object(parse_json(content), "the file")
    return DelayOffsets(_integers(root.get("offsetTable"), "offsetTable"), _data_version(root))


def write_delay_offsets(content: DelayOffsets) -> bytes:
    """Return the content of `delayOffset.json`."""
    table = _sorted_keys(content.offsets)
    return _write({**_versioned(content.data_version), "offsetTable": table})


def read_topics(content: bytes | str) -> TopicConfigs:
    """Read `topics.json`. Raises ConfigError: not JSON, or a field has the wrong type."""
    root = _object(parse_json(content), "the file")
    topics = {}
    for name, raw in _object(root.get("topicConfigTable"), "topicConfigTable").items():
        fields = _fields(raw, _TOPIC_FIELDS, TopicConfig(topic=name), f"topic {name}")
        topics[name] = TopicConfig(**{**fields, "topic": name})
    return TopicConfigs(topics, _data_version(root))


def write_topics(content: TopicConfigs) -> bytes:
    """Return the content of `topics.json`."""
    texts = {name: topic_text(topic) for name, topic in content.topics.items()}
    return join_topics(texts, content.data_version)


def topic_text(topic: TopicConfig) -> str:
    """Return a topic's text in `topics.json`, for `join_topics`."""
    # Names and values contain no line breaks, because JSON escapes them.
    return _text(_fields_of(topic, _TOPIC_FIELDS)).replace("\n", "\n\t\t")


def join_topics(texts: Mapping[str, str], version: DataVersion) -> bytes:
    """Return the content of `topics.json` from the texts of its topics, which callers reuse for
    unchanged topics.

    Args:
        texts: from `topic_text`, by the topics' names.
        version: the file's.
    """
    root = _text({**_versioned(version), "topicConfigTable": {}})
    if not texts:
        return root.encode()
    table = ",".join(f"\n\t\t{_text(name)}:{text}" for name, text in texts.items())
    head, end = root[: -len("}\n}")], "\n\t}\n}"
    return f"{head}{table}{end}".encode()


def read_groups(content: bytes | str) -> GroupConfigs:
    """Read `subscriptionGroup.json`. Raises ConfigError: not JSON, or a field has the wrong
    type."""
    root = _object(parse_json(content), "the file")
    table = _object(root.get("subscriptionGroupTable"), "subscriptionGroupTable")
    groups = {}
    for name, raw in table.items():
        fields = _fields(raw, _GROUP_FIELDS, GroupConfig(group=name), f"group {name}")
        groups[name] = GroupConfig(**{**fields, "group": name})
    forbidden = {
        group: {
            topic: _integer(bits, f"forbiddenTable: {group}: {topic}")
            for topic, bits in _object(topics, f"forbiddenTable: {group}").items()
        }
        for group, topics in _object(root.get("forbiddenTable"), "forbiddenTable").items()
    }
    return GroupConfigs(groups, forbidden, _data_version(root))


def write_groups(content: GroupConfigs) -> bytes:
    """Return the content of `subscriptionGroup.json`."""
    forbidden = {group: dict(topics) for group, topics in content.forbidden.items()}
    table = {name: _fields_of(group, _GROUP_FIELDS) for name, group in content.groups.items()}
    return _write(
        {
            **_versioned(content.data_version),
            "forbiddenTable": forbidden,
            "subscriptionGroupTable": table,
        }
    )


def read_local_offsets(content: bytes | str) -> dict[LocalQueue, int]:
    """Read a broadcasting client's `offsets.json`: the next offset of each queue. Raises
    ConfigError: not JSON, a key is not a queue, or a value is not a number."""
    root = _object(parse_json(content), "the file")
    offsets = {}
    for key, offset in _object(root.get("offsetTable"), "offsetTable").items():
        # Java writes an object as the key; `parse_json` has converted it to its JSON text.
        queue = _object(parse_json(key), f"offsetTable: {key}")
        topic, broker_name = queue.get("topic"), queue.get("brokerName")
        if not isinstance(topic, str) or not isinstance(broker_name, str):
            raise ConfigError(f"offsetTable: {key} names no queue")
        queue_id = _integer(queue.get("queueId", 0), f"offsetTable: {key}: queueId")
        offsets[LocalQueue(topic, broker_name, queue_id)] = _integer(offset, f"offsetTable: {key}")
    return offsets


def write_local_offsets(offsets: Mapping[LocalQueue, int]) -> bytes:
    """Return a broadcasting client's `offsets.json`."""
    table = {}
    for queue in sorted(offsets):
        name = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        table[json.dumps(name, separators=(",", ":"), ensure_ascii=False)] = offsets[queue]
    return _write({"offsetTable": table})


def _write(root: dict[str, Json]) -> bytes:
    return _text(root).encode()


def _text(value: Json) -> str:
    return json.dumps(
        value, indent="\t", separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _versioned(version: DataVersion) -> dict[str, Json]:
    return {
        "dataVersion": {
            "counter": version.counter,
            "stateVersion": version.state_version,
            "timestamp": version.timestamp_ms,
        }
    }


def _data_version(root: dict[str, Json]) -> DataVersion:
    raw = _object(root.get("dataVersion"), "dataVersion")
    return DataVersion(
        *(
            _integer(raw.get(name) or 0, f"dataVersion: {name}")
            for name in ("counter", "stateVersion", "timestamp")
        )
    )


def _sorted_keys(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(key): numbers[key] for key in sorted(numbers)}


def _fields_of(config: TopicConfig | GroupConfig, names: Mapping[str, str]) -> dict[str, Json]:
    known: dict[str, Json] = {}
    for name, attribute in names.items():
        value = getattr(config, attribute)
        known[name] = dict(value) if isinstance(value, Mapping) else value
    return dict(sorted({**config.extra, **known}.items()))


def _fields(
    raw: Json, names: Mapping[str, str], defaults: TopicConfig | GroupConfig, place: str
) -> dict[str, Json]:
    """Convert an object of the file to arguments, each of the type of its default."""
    found: dict[str, Json] = {"extra": {}}
    for name, value in _object(raw, place).items():
        attribute = names.get(name)
        if value is None:
            continue
        if attribute is None:
            found["extra"][name] = value
        else:
            default = getattr(defaults, attribute)
            found[attribute] = _of_kind(value, default, f"{place}: {name}")
    return found


def _of_kind(value: Json, default: Json, place: str) -> Json:
    if isinstance(default, bool):
        return _boolean(value, place)
    if isinstance(default, int):
        return _integer(value, place)
    if isinstance(default, str):
        return _string(value, place)
    return {key: _string(item, f"{place}: {key}") for key, item in _object(value, place).items()}


def _object(value: Json, place: str) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: expected an object")
    return value


def _integers(value: Json, place: str) -> dict[int, int]:
    return {
        _integer(key, f"{place}: {key}"): _integer(number, f"{place}: {key}")
        for key, number in _object(value, place).items()
    }


def _integer(value: Json, place: str) -> int:
    """Accept 5, 5.0 and "5", as fastjson does."""
    number = None
    if isinstance(value, str):
        digits = value.strip()
        if digits.removeprefix("-").isdecimal() and len(digits) <= 20:
            number = int(digits)
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if number is None or not -(2**63) <= number < 2**63:
        raise ConfigError(f"{place}: {value!r} is not a 64-bit number")
    return number


def _boolean(value: Json, place: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ConfigError(f"{place}: {value!r} is neither true nor false")


def _string(value: Json, place: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{place}: {value!r} is not a string")
    return value
