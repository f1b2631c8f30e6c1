"""What a run of a load test does: a scenario and its numbers, the same on every machine of it."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

ROWS_MAX = 3600


@dataclass(frozen=True)
class Plan:
    """All that workers, master and auditor have to know."""

    scenario: str
    """Its name in `load.scenarios`."""
    endpoint: str
    """Nameservers, "host:port,host:port"."""
    run: int
    """Which run, 32 bits: its messages, topics and groups bear it."""
    seconds: float
    """From the first user to the order to stop."""
    shape: str
    """How users come: a name in `load.shapes`."""
    users: int
    """When all are there."""
    workers: int
    """Processes that they are spread over."""
    rate: float
    """Messages a second of each sender; 0: as fast as they are acknowledged."""
    window: int
    """Messages that a sender may have on their way."""
    body_bytes: int
    """Of each message, 40 or more."""
    topics: int
    queues: int
    """Of each topic on each broker."""
    groups: int
    """Consumer groups; members are spread over them."""
    handle_ms: float
    """What the handlers of slow consumers take for a message."""
    stay_seconds: float
    """How long a member stays in a storm of rebalances."""
    hot_share: float
    """Of the messages to one key, where a key is hot."""
    kill_seconds: float
    """How often a process of the cluster is killed; 0: never."""
    check: str
    """When the checker reads: "live", "after" the load, or not at all, "off"."""
    commit: str
    """Of the source tree, for the profile; empty where there is none."""

    @property
    def interval_seconds(self) -> float:
        """Between two rows of what is drawn over time: a run of days has no more than one of an
        hour."""
        return max(self.seconds / ROWS_MAX, 1.0)

    @property
    def topic_names(self) -> list[str]:
        return [f"load-{self.run:08x}-{number}" for number in range(self.topics)]

    @property
    def group_names(self) -> list[str]:
        return [f"load-{self.run:08x}-g{number}" for number in range(self.groups)]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
