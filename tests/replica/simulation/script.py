"""Script: a world with only the events that a test requests."""

from collections.abc import Collection
from pathlib import Path

from replica.simulation.node import Node
from replica.simulation.world import World
from rockoon_replica import events


class Script(World):
    """Members of one log, and their events in order.

    Args:
        shape: number of replicas; see `SHAPES`.
        nameserver: see `World`; a rule of elections can be broken only without it.
        root, journals, bugs, old_disks: see `World`.
    """

    def __init__(
        self,
        shape: str = "three",
        *,
        nameserver: bool = False,
        root: Path | None = None,
        journals: bool = False,
        bugs: tuple[str, ...] = (),
        old_disks: bool = False,
    ) -> None:
        kinds = {"journals": journals, "old_disks": old_disks}
        super().__init__(1, shape, bugs, nameserver=nameserver, root=root, **kinds)
        self.is_eager = False
        self.crashes_between = 0
        self.lag_max = 1 << 20
        self._harms_left = self._restores_left = self._old_disks_left = 0

    def turns(self, *names: str, count: int = 12, told: bool = True) -> None:
        """Let these replicas exchange messages with each other and with the nameservers.

        Args:
            names: replicas that run and reach each other; all by default.
            told: whether they receive replies and states of nameservers.
        """
        among = [node for node in self.nodes if node.up and node.replica in (names or self.names)]
        for _ in range(count):
            for node in among:
                if told and self.snapshots is not None:
                    self.register.come(node.replica, node.facts.run)
                if told:
                    node.handle(events.StateSeen(self.register.past[-1]))
            self._call(among)
            for node in among:
                self.connect(node)
                self._talk(among)
            for node in among:
                self.sync(node)
            self._talk(among)
            self.check()

    @property
    def names(self) -> list[str]:
        return [node.replica for node in self.nodes]

    def _call(self, among: Collection[Node]) -> None:
        names = [node.replica for node in among]
        calls, self.calls = self.calls, []
        for who, action in calls:
            if who in names:
                self.register.call(who, action)

    def _talk(self, among: Collection[Node]) -> None:
        """Deliver their messages to each other, and let a leader send its records."""
        for node in among:
            for link in list(node.links.values()):
                if link.leader is node and link.follower in among and not link.broken:
                    node.send_chunk(link, 1 << 20)
        for link in list(self.links):
            if link.leader in among and link.follower in among:
                for _ in range(len(link.up) + len(link.down) + 1):
                    if link in self.links:
                        self.deliver(link)

    def led_by(self, name: str, *others: str) -> Node:
        """Let a replica lead; these others follow."""
        for node in self.nodes:
            if node.replica in (name, *others):
                self.start(node)
        for _ in range(8):
            self.turns(name, *others)
            leader = next((each for each in self.leaders() if each.replica == name), None)
            if leader is not None and leader.appends:
                return leader
            self.register.depose()
        raise AssertionError(f"{name} does not lead: {self.describe()}")

    def kill(self, name: str) -> Node:
        """End a process; its links end visibly."""
        node = next(each for each in self.nodes if each.replica == name)
        node.stop()
        for link in [each for each in self.links if node in (each.follower, each.leader)]:
            self._close(link)
        return node

    def serves_topic(self, leader: Node) -> None:
        """Notify a leader of the topic, and wait until it accepts its messages."""
        assert self.routes is not None
        for _ in range(4):
            leader.follow_routes(self.routes)
            if leader.topic is not None and leader.topic.served == self.routes.incarnation:
                return
            self.turns()
        raise AssertionError(f"{leader.replica} does not serve the topic")

    def message(self, leader: Node) -> int:
        """A sender sends the next message to a leader."""
        value = self.next_value()
        leader.append(value)
        return value
