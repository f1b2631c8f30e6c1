"""A topic is deleted and created again around a failover, in stores: all copies show the same."""

from pathlib import Path

import pytest

from replica.simulation.node import Node
from replica.simulation.script import Script
from replica.simulation.topics import check_topic
from replica.simulation.truth import Violation


class Story(Script):
    """Three stores, and a topic."""

    def __init__(self, root: Path, *bugs: str) -> None:
        super().__init__(root=root, bugs=bugs)
        self.a, self.b, self.c = self.names

    def given(self, leader: Node) -> None:
        """A leader accepts a message, and all running copies learn that it is committed."""
        self.serves_topic(leader)
        value = self.message(leader)
        self.turns()
        self.turns()
        assert value in self.truth.acked

    def recreated(self) -> None:
        """No copy learns of it yet."""
        assert self.routes is not None
        self.routes.change(self.random)
        while self.routes.incarnation is None:
            self.routes.change(self.random)

    def agree(self) -> None:
        assert self.routes is not None
        for node in self.nodes:
            if node.up:
                check_topic(self, node, self.routes.incarnation)

    def two_fail_overs(self) -> None:
        self.given(self.led_by(self.a, self.b, self.c))
        self.recreated()
        self.kill(self.a)
        self.given(self.led_by(self.b, self.c))
        self.agree()
        # The first one again, which has seen nothing of it.
        self.kill(self.b)
        leader = self.led_by(self.a, self.c)
        self.serves_topic(leader)
        self.turns()
        self.agree()
        self.given(leader)
        self.agree()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "stores"


def told(root: Path, *bugs: str) -> None:
    root.mkdir()
    story = Story(root, *bugs)
    try:
        story.two_fail_overs()
    finally:
        story.close()


def test_a_fail_over_between_deletion_and_creation_shows_nothing_old_and_hides_nothing(
    root: Path,
) -> None:
    told(root)


def test_a_new_leader_that_trusts_what_it_wrote_down_itself_is_found(root: Path) -> None:
    with pytest.raises(Violation, match="of a topic that was deleted"):
        told(root, "own_topics")


def test_a_deletion_that_was_not_committed_is_said_again_by_the_next_leader(root: Path) -> None:
    root.mkdir()
    story = Story(root)
    leader = story.led_by(story.a, story.b, story.c)
    story.given(leader)
    story.recreated()
    # It is written, and no other copy learns of it.
    leader.follow_routes(story.routes)
    assert leader.topic is not None
    assert leader.topic.served is None
    story.kill(story.a)
    story.given(story.led_by(story.b, story.c))
    story.led_by(story.b, story.a, story.c)
    story.turns()
    story.turns()
    story.agree()
    story.close()


def test_a_learner_from_nothing_shows_the_topic_as_it_is(root: Path) -> None:
    root.mkdir()
    story = Story(root)
    leader = story.led_by(story.a, story.b, story.c)
    story.given(leader)
    story.recreated()
    story.given(leader)
    learner = story.kill(story.c)
    learner.become_new()
    learner.start()
    story.register.assign(learner.replica)
    for _ in range(4):
        story.turns()
    assert learner.log.end == leader.log.end
    story.agree()
    story.close()
