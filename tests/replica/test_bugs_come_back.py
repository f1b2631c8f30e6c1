"""Known faults of other systems appear here if the rule that prevents them is broken."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.broken_service import alone
from store import test_committed as committed

from replica import test_bugs_of_others as bugs
from replica.simulation.broken import BROKEN
from replica.simulation.node import Node
from replica.simulation.truth import Violation
from rockoon_broker.store.log.epochs import Epochs
from rockoon_broker.store.recovery import recovery
from rockoon_broker.store.recovery.cut import TruncationFile
from rockoon_core.errors import RockoonError, StoreCorrupt
from rockoon_format.log_marks import EpochMark, TopicChange
from rockoon_nameserver import log_membership
from rockoon_replica import leadership
from rockoon_replica.leadership import Leadership
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile

Patch = pytest.MonkeyPatch


def counts_itself(patch: Patch) -> None:
    """Records that only the leader has are committed: `make faults BREAK=quorum`."""
    patch.setattr(leadership, "committed_end", alone)


def believes_anybody(patch: Patch) -> None:
    """An acknowledgement counts without a check against the sent bytes."""
    real = Leadership.acked
    patch.setattr(
        Leadership, "acked", lambda self, session, ack, _: real(self, session, ack, 1 << 62)
    )


def epochs_without_records(patch: Patch) -> None:
    """An epoch begins without a record in the log."""
    patch.setattr(Node, "_openepoch", lambda *_: None)


def cuts_in_memory(patch: Patch) -> None:
    """A truncation is not recorded durably."""
    patch.setattr(TruncationFile, "write", lambda *_: None)


def doubts_nothing(patch: Patch) -> None:
    """Lost records change nothing."""
    patch.setattr(ReplicaFile, "doubt", lambda _: False)


def guesses(patch: Patch) -> None:
    """A file that cannot be read counts as a new one."""
    real = ReplicaFile.read

    def read(self: ReplicaFile) -> ReplicaFacts | None:
        try:
            return real(self)
        except StoreCorrupt:
            return None

    patch.setattr(ReplicaFile, "read", read)


def known_by_address(patch: Patch) -> None:
    """An address identifies a replica."""
    real = log_membership.registered

    def registered(log: Any, node: Any, *rest: Any, **more: Any) -> Any:
        node.store_id = node.address
        return real(log, node, *rest, **more)

    patch.setattr(log_membership, "registered", registered)


def lists_what_it_finds(patch: Patch) -> None:
    """A start shows readers all records of the log."""
    patch.setattr(recovery, "count_runs", recovery.dispatch_runs)


def counts_no_numbers(patch: Patch) -> None:
    """Records that a start does not show have no offsets."""
    patch.setattr(recovery, "count_runs", lambda *_: None)


def topics_beside_the_log(patch: Patch) -> None:
    """The topics of a log are only in its leader's file."""
    real = Epochs.add

    def add(self: Epochs, physical_offset: int, mark: EpochMark | TopicChange) -> None:
        topics = self.topics
        real(self, physical_offset, mark)
        self.topics = topics

    patch.setattr(Epochs, "add", add)


BROKEN_BY: dict[str, Callable[[Patch], None]] = {
    "rocketmq_5663": BROKEN["config_old_only"],
    "rocketmq_7017": counts_itself,
    "rocketmq_3015": believes_anybody,
    "bookkeeper_2614": BROKEN["no_fence"],
    "kip_101": BROKEN["truncate_to_committed"],
    "kip_279": BROKEN["no_truncation"],
    "kafka_10706": epochs_without_records,
    "rocketmq_10666": cuts_in_memory,
    "rocketmq_1094": BROKEN["elect_first"],
    "kip_966": BROKEN["unsound_counts"],
    "nats_7549": doubts_nothing,
    "nats_7556": guesses,
    "rocketmq_5745": known_by_address,
    "rocketmq_9804": topics_beside_the_log,
}
TESTS = {
    "_".join(name.split("_")[1:3]): test
    for name, test in vars(bugs).items()
    if name.startswith("test_") and callable(test)
}
FAILURES = (AssertionError, Violation, ValueError, RockoonError, pytest.fail.Exception)


def test_each_of_them_has_its_rule() -> None:
    assert TESTS.keys() == BROKEN_BY.keys()


@pytest.mark.parametrize("bug", BROKEN_BY)
def test_with_its_rule_broken_it_comes_back(bug: str, tmp_path: Path) -> None:
    test = TESTS[bug]
    needs_path = "tmp_path" in test.__annotations__
    with pytest.MonkeyPatch.context() as patch:
        BROKEN_BY[bug](patch)
        with pytest.raises(FAILURES):
            test(tmp_path) if needs_path else test()


@pytest.mark.parametrize("rule", [lists_what_it_finds, counts_no_numbers])
@pytest.mark.parametrize("killed", [False, True])
def test_rocketmq_6609_and_7689_come_back(
    rule: Callable[[Patch], None], killed: bool, tmp_path: Path
) -> None:
    test = committed.test_rocketmq_6609_and_7689_a_start_shows_and_renumbers_nothing_uncommitted
    with pytest.MonkeyPatch.context() as patch:
        rule(patch)
        with pytest.raises(AssertionError):
            test(tmp_path, killed)
