"""The end of a copy's log is damaged, which looks like an unfinished write. A copy that has
acknowledged the lost records detects this, and does not vote before it has copied them again."""

from pathlib import Path

import pytest

from replica.simulation.node import Node
from replica.simulation.script import Script
from replica.simulation.truth import Violation
from rockoon_core.disk import Disk
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ACKNOWLEDGED, AcknowledgedEnd, ReplicaFile

KINDS = pytest.mark.parametrize("journals", [False, True], ids=["broker", "offset service"])


class Story(Script):
    """One of two copies has lost acknowledged records at the end of its log."""

    def __init__(self, root: Path, journals: bool, *bugs: str) -> None:
        root.mkdir()
        super().__init__(root=root, journals=journals, bugs=bugs)
        self.a, self.b, self.c = self.nodes

    def acknowledged_by_two(self) -> Node:
        leader = self.led_by(self.a.replica, self.b.replica)
        if self.routes is not None:
            self.serves_topic(leader)
        sent = self.message(leader)
        self.turns(self.a.replica, self.b.replica)
        assert sent in self.truth.acked
        return leader

    def lose_the_end(self) -> None:
        self.acknowledged_by_two()
        self.kill(self.a.replica)
        self.kill(self.b.replica)
        before = self.b.log.end
        assert self.b.log.crash_damaged()
        assert self.b.log.end < before
        assert self.b.log.losses == [], "nothing stands behind the damage"
        self.b.look_at_log()
        self.register.depose()
        for node in (self.b, self.c):
            self.start(node)
        # One copy lost the message, the other never had it.
        self.turns(self.b.replica, self.c.replica)


@KINDS
def test_it_elects_nobody_with_one_that_never_had_the_message(
    tmp_path: Path, journals: bool
) -> None:
    story = Story(tmp_path / "logs", journals)
    story.lose_the_end()
    assert story.leaders() == []
    assert not story.b.facts.sound
    story.start(story.a)
    story.turns()
    assert story.leaders() == [story.a]
    story.settle()
    assert story.b.facts.sound
    story.close()


@KINDS
def test_otherwise_the_message_is_gone(tmp_path: Path, journals: bool) -> None:
    story = Story(tmp_path / "logs", journals, "losses_unheard")
    with pytest.raises(Violation, match="has not all committed"):
        story.lose_the_end()
    story.close()


@KINDS
def test_a_copy_that_is_killed_whole_stays_sound(tmp_path: Path, journals: bool) -> None:
    story = Story(tmp_path / "logs", journals)
    story.acknowledged_by_two()
    for _ in range(3):
        for node in story.nodes:
            story.kill(node.replica)
            node.log.crash(power=False)
            node.look_at_log()
            assert node.facts.sound
        story.acknowledged_by_two()
    story.settle()
    story.close()


def test_the_file_says_what_was_acknowledged_and_a_start_doubts_a_shorter_log(
    tmp_path: Path,
) -> None:
    file = ReplicaFile(tmp_path, Disk())
    assert file.acknowledged.end == 0
    file.acknowledged.raise_to(70)
    assert not file.doubt_short(60), "it was never a replica's"
    file.write(ReplicaFacts(promised=3))
    for end in (100, 90):
        file.acknowledged.raise_to(end)
        again = ReplicaFile(tmp_path, Disk())
        assert again.acknowledged.end == 100
        assert again.doubt_short(100) == ""
    assert ReplicaFile(tmp_path, Disk()).doubt_short(99) == (
        "the log ends at 99, and was acknowledged up to 100"
    )
    facts = file.read()
    assert facts == ReplicaFacts(promised=3, sound=False)
    # Reported once: records that are copied from here on do not cause another report.
    assert ReplicaFile(tmp_path, Disk()).doubt_short(99) == ""
    file.acknowledged.lower(50)
    assert AcknowledgedEnd(tmp_path, Disk()).end == 50
    content = (tmp_path / ACKNOWLEDGED).read_bytes()
    for torn in (b"", content[:5], bytes(12), content[:-1] + b"?"):
        (tmp_path / ACKNOWLEDGED).write_bytes(torn)
        assert AcknowledgedEnd(tmp_path, Disk()).end == 0
    file.acknowledged.close()
