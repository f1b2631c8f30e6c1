"""The plan of a load test's run: a scenario and its numbers, equal on each of its machines."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

ROWS_MAX = 3600


@dataclass(frozen=True)
class Plan:
    """All values for workers, master and auditor."""

    scenario: str
    """Its name in `load.scenarios`."""
    endpoint: str
    """Nameservers, "host:port,host:port"."""
    run: int
    """Id of the run, 32 bits: its messages, topics and groups contain it."""
    seconds: float
    """From the first user to the order to stop."""
    shape: str
    """Schedule of the users: a name in `load.shapes`."""
    users: int
    """Number of users at the end of the schedule."""
    workers: int
    """Processes of the users."""
    rate: float
    """Messages a second of each sender; 0: as fast as they are acknowledged."""
    window: int
    """Maximum of messages in flight of a sender."""
    body_bytes: int
    """Of each message, 40 or more."""
    topics: int
    queues: int
    """Of each topic on each broker."""
    groups: int
    """Consumer groups; the members are divided among them."""
    handle_ms: float
    """Time for a message in the handlers of slow consumers."""
    stay_seconds: float
    """Time for which a member stays in a storm of rebalances."""
    hot_share: float
    """Share of the messages to one key, if a key is hot."""
    kill_seconds: float
    """Interval between kills of processes of the cluster; 0: none."""
    check: str
    """Time of the checker's reads: "live", "after" the load, or "off", not at all."""
    commit: str
    """Commit of the source tree, for the profile; empty if there is none."""

    @property
    def interval_seconds(self) -> float:
        """Return the interval of rows over time: a run of days has no more rows than one of an
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
