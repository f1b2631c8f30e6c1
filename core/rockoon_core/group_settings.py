"""Table of the consumer group settings that are a word or a number.

A row describes a field of `GroupConfig` (documented in nameserver.proto). The table provides the
nameservers' checks, the options of `rockoon group create` and `update`, and the output of
`describe` and `--json`. Start policy, pause, attributes and retry delays have other forms and no
row.

Imports no generated code: the command line reads the table before it connects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rockoon_proto.v1.nameserver_pb2 import GroupConfig

Value = str | int | bool
"""Type of a setting's value: a word, a number, or a truth value."""

RETRY_ATTEMPTS_DEFAULT = 16
RETRY_QUEUES_DEFAULT = 1
RETRY_DELAYS_MAX = 64
RETRY_DELAY_MS_MAX = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """One row: a setting of a consumer group.

    Attributes:
        name: name of the field in `GroupConfig`; with dashes, of the command line option.
        help: help text of the option.
        default: value of groups that have not set it; None if another setting provides it.
        words: word for people → name in the field's enum, or truth value.
        maximum: upper bound of a numeric field; the lower bound is 0.
    """

    name: str
    help: str
    default: Value | None
    words: Mapping[str, str | bool] = field(default_factory=dict)
    maximum: int = 0

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def get(self, config: "GroupConfig") -> Value | None:
        """Return the value of a group; None if it is not set or unknown."""
        if not self.words:
            return int(getattr(config, self.name)) if config.HasField(self.name) else None
        said = getattr(config, self.name)
        if isinstance(said, bool):
            named: str | bool | None = said if config.HasField(self.name) else None
        else:
            value = self._enum(config).get(said)
            named = value.name if value else None
        return next((word for word, name in self.words.items() if name == named), None)

    def fault(self, config: "GroupConfig") -> str:
        """Return why a group's value is invalid; empty if it is valid."""
        value = getattr(config, self.name)
        if not self.words:
            is_possible = 0 <= value <= self.maximum
            return "" if is_possible else f"{self.name} {value}: 0 to {self.maximum}"
        is_known = isinstance(value, bool) or value in self._enum(config)
        return "" if is_known else f"{self.name} {value} is not known"

    def _enum(self, config: "GroupConfig") -> Mapping[int, Any]:
        """Return the values of the protobuf enum of this setting, by number."""
        enum = config.DESCRIPTOR.fields_by_name[self.name].enum_type
        assert enum is not None, "a row with words is about an enum"
        return enum.values_by_number


OUT_OF_RANGE = {
    "first": "OUT_OF_RANGE_FIRST",
    "last": "OUT_OF_RANGE_LAST",
    "fail": "OUT_OF_RANGE_FAIL",
}

GROUP_SETTINGS = (
    GroupSetting(
        "new_queue_rule",
        "When a queue counts as new to the group: exact, or as in RocketMQ.",
        default=None,
        words={"exact": "EXACT", "classic": "CLASSIC"},
    ),
    GroupSetting(
        "retry_attempts_max",
        "Redeliveries of a failed message before it is a dead letter (default: 16).",
        default=RETRY_ATTEMPTS_DEFAULT,
        maximum=1_000_000,
    ),
    GroupSetting(
        "retry_queues",
        "Retry queues on each broker (default: 1); 0: dead letters at the first failure.",
        default=RETRY_QUEUES_DEFAULT,
        # The limit of queues created in one call.
        maximum=4_096,
    ),
    GroupSetting(
        "broadcast_progress",
        "Where members that read everything keep their progress: on their machines (default), or "
        "in the offset service, under each member's name.",
        default="local",
        words={"local": "BROADCAST_LOCAL", "server": "BROADCAST_SERVER"},
    ),
    GroupSetting(
        "fifo",
        "Whether receivers get messages of a message group in their order, one at a time (default: "
        "no).",
        default="no",
        words={"yes": True, "no": False},
    ),
    GroupSetting(
        "below_min",
        "Where to resume if retention has deleted the group's position (default: first); fail: "
        "stop until an operator resets it.",
        default="first",
        words=OUT_OF_RANGE,
    ),
    GroupSetting(
        "above_max",
        "The same for progress beyond the end of a log that lost its tail (default: last).",
        default="last",
        words=OUT_OF_RANGE,
    ),
    GroupSetting(
        "other_incarnation",
        "The same for progress on a topic that was deleted and created again (default: first).",
        default="first",
        words=OUT_OF_RANGE,
    ),
)


def retry_delays_fault(delays_ms: Sequence[int]) -> str:
    """Return why these delays are invalid; empty if they are valid."""
    if len(delays_ms) > RETRY_DELAYS_MAX:
        return f"{len(delays_ms)} retry_delays_ms: at most {RETRY_DELAYS_MAX}"
    bad = [each for each in delays_ms if not 0 <= each <= RETRY_DELAY_MS_MAX]
    return f"retry_delays_ms {bad[0]}: 0 to {RETRY_DELAY_MS_MAX} (12 hours)" if bad else ""
