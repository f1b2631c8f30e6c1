"""A KEDA trigger, from its metadata. Pure.

triggers:
  - type: external-push
    metadata:
      scalerAddress: rockoon-gateway.rockoon.svc:8082
      group: billing
      topic: orders
      lagThreshold: "100"
      activationLagThreshold: "0"
      pollSeconds: "5"
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rockoon_core.errors import InvalidArgument

LAG_THRESHOLD = 100
ACTIVATION_LAG_THRESHOLD = 0
POLL_SECONDS = 5
POLL_SECONDS_MAX = 300
NUMBER_MAX = 1 << 53


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger."""

    group: str
    topic: str
    """Empty: all topics that the group reads."""
    lag_threshold: int
    """Messages of lag for one replica."""
    activation_lag_threshold: int
    """The group is active if its lag is above this."""
    poll_seconds: int
    """Interval of lag reads for a push trigger."""

    @property
    def metric_name(self) -> str:
        """Name of the metric, unique among different triggers of a ScaledObject.

        Kubernetes refuses a percent sign in the name of a metric. A dot replaces it: no topic or
        group has one.
        """
        parts = (
            ["rockoon-lag", self.group, self.topic] if self.topic else ["rockoon-lag", self.group]
        )
        return "-".join(parts).replace("%", ".")

    @classmethod
    def parse(cls, metadata: Mapping[str, str]) -> "Trigger":
        """Parse a trigger's metadata; keys that KEDA adds are ignored.

        Raises:
            InvalidArgument: the group is missing, or a number is invalid.
        """
        group = metadata.get("group", "").strip()
        if not group:
            raise InvalidArgument(reason="the trigger's metadata names no group")
        return cls(
            group=group,
            topic=metadata.get("topic", "").strip(),
            lag_threshold=_number(metadata, "lagThreshold", LAG_THRESHOLD, 1, NUMBER_MAX),
            activation_lag_threshold=_number(
                metadata, "activationLagThreshold", ACTIVATION_LAG_THRESHOLD, 0, NUMBER_MAX
            ),
            poll_seconds=_number(metadata, "pollSeconds", POLL_SECONDS, 1, POLL_SECONDS_MAX),
        )


def _number(metadata: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = metadata.get(name, "").strip()
    if not text:
        return default
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(high))
    if not is_number or not low <= int(text) <= high:
        raise InvalidArgument(reason=f"{name} is {text!r}, not a number from {low} to {high}")
    return int(text)
