"""Runs the tasks of a compaction one after another in this process, instead of Spark."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from rockoon_spark.compaction.exchange import Step
from rockoon_spark.compaction.steps import KeyedMessage

Task = TypeVar("Task")


@dataclass
class HeldMessages:
    """See `Messages`."""

    messages: list[KeyedMessage]
    retries: int

    def then(self, step: Step) -> "HeldMessages":
        return self._given(step, [self.messages])

    def to_addresses(self, addresses: int, step: Step) -> "HeldMessages":
        assert all(0 <= message.address < addresses for message in self.messages)
        together = [
            [message for message in self.messages if message.address == address]
            for address in range(addresses)
        ]
        return self._given(step, together)

    def and_those(self, others: "HeldMessages") -> "HeldMessages":
        return HeldMessages(self.messages + others.messages, self.retries)

    def kept(self) -> "HeldMessages":
        return self

    def release(self) -> None:
        pass

    def of_kinds(self, *kinds: int) -> "HeldMessages":
        return HeldMessages([each for each in self.messages if each.kind in kinds], self.retries)

    def collect(self) -> list[KeyedMessage]:
        return self.messages

    def _given(self, step: Step, groups: Iterable[list[KeyedMessage]]) -> "HeldMessages":
        found = []
        for group in groups:
            for _ in range(self.retries):
                list(pickled(step)(iter(group)))
            found += list(pickled(step)(iter(group)))
        return HeldMessages(found, self.retries)


@dataclass
class OneProcess:
    """See `Exchange`.

    Args:
        parallel_tasks: number of buckets.
        retries: number of runs of each task whose result is discarded, before its result counts.
    """

    parallel_tasks: int = 3
    retries: int = field(default=0, kw_only=True)

    def start(self, tasks: range, step: Callable[[int], Iterator[KeyedMessage]]) -> HeldMessages:
        found = []
        for number in tasks:
            for _ in range(self.retries):
                list(pickled(step)(number))
            found += list(pickled(step)(number))
        return HeldMessages(found, self.retries)


def pickled(task: Task) -> Task:
    """Return a task as it arrives in another process."""
    copy: Task = pickle.loads(pickle.dumps(task))
    return copy
