"""Node: a process with one copy of a log, which executes its member's decisions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from replica.simulation.stored_log import StoredLog
from replica.simulation.topics import Routes, TopicOfLeader
from replica.simulation.truth import Violation
from rockoon_core.replication_rules import common_end
from rockoon_format.log_marks import LogTopics
from rockoon_replica import actions, events
from rockoon_replica.actions import Action
from rockoon_replica.events import Event
from rockoon_replica.log_state import StateVersion
from rockoon_replica.member import Member, Role
from rockoon_replica.messages import RecordChunk
from rockoon_replica.replica_facts import ReplicaFacts
from support.byte_log import VALUE

if TYPE_CHECKING:
    from replica.simulation.world import World


class Link:
    """A connection from a follower to a leader; messages arrive in order, or the connection ends.

    Args:
        number: number of the session, at both ends.
    """

    def __init__(self, number: int, follower: Node, leader: Node) -> None:
        self.number = number
        self.follower, self.leader = follower, leader
        self.up: deque[Event] = deque()
        self.down: deque[Event] = deque()
        # Start of the next chunk; None before the welcome.
        self.next: int | None = None
        self.broken = False


class Node:
    """One process. Its log, up to the synced end, and its facts are durable."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.replica = name
        self.facts = ReplicaFacts()
        self.log = world.new_log()
        self.up = False
        # A broker of one copy, without replication.
        self.is_plain = False
        # Values by the positions of their records; as a broker's ledger of sequences.
        self.ledger: dict[int, tuple[int, int]] = {}
        # End up to which it has acknowledged its log.
        self.noted = 0
        # The file of topics that it wrote when it last led.
        self.written_topics = LogTopics()
        self.forget()

    def forget(self) -> None:
        """Reset the state that does not outlive the process."""
        self.target: actions.Connect | None = None
        self.links: dict[int, Link] = {}
        self.appends = False
        self.waiting: dict[int, tuple[int, int]] = {}
        self.reads: list[tuple[int, int, int]] = []
        self.topic: TopicOfLeader | None = None
        self.life = getattr(self, "life", 0) + 1

    def start(self, *, is_new: bool = True) -> None:
        """Open the log as any process does: its records are synced first.

        Args:
            is_new: it is another process, not another life of the same one.
        """
        self.forget()
        if self.world.snapshots is not None and is_new:
            self.facts = self.facts.in_next_run(self.world.next_run())
        self.up, self.is_plain = True, False
        self.log.reopened(self.world.random)
        self.look_at_log()
        if "demotion_in_memory" not in self.world.bugs:
            self.ledger = {}
        self.member = Member(self.replica, self.facts, self.log, lag_max=self.world.lag_max)
        self.handle(events.Started())

    def start_plain(self) -> None:
        """Become a broker of one copy: the records on its disk are the log."""
        self.forget()
        self.up = self.is_plain = self.appends = True
        self.log.reopened(self.world.random)
        self.ledger = {}
        self.learn_values()
        epoch = self.facts.promised
        self.world.truth.leads(self.replica, epoch, self.log)
        if all(each.epoch != epoch for each in self.log.boundaries()):
            self.log.open_epoch(epoch)
        self.synced_plainly()

    def synced_plainly(self) -> None:
        """Commit the records on its disk."""
        self._commitupto(actions.CommitUpTo(self.log.durable_end))

    def look_at_log(self) -> None:
        """Return the state after a start: acknowledged records may be lost."""
        lost = self.log.end < self.noted or bool(self.log.losses)
        if lost and "losses_unheard" not in self.world.bugs and self.facts != ReplicaFacts():
            self.world.counts["losses"] += 1
            self.facts = self.facts._replace(sound=False)
        self.noted = min(self.noted, self.log.end)
        self.log.losses.clear()

    def stop(self) -> None:
        """End the process; its connections may be seen to end later."""
        self.up = False
        self.break_links()
        self.forget()

    def break_links(self) -> None:
        """End all connections, also those whose first message has not arrived yet."""
        for link in self.world.links:
            if self in (link.follower, link.leader):
                link.broken = True

    def handle(self, event: Event) -> None:
        """Pass an event to the member, and execute its actions; a crash may come between any
        two."""
        if not self.up or self.is_plain:
            return
        life = self.life
        for action in self.member.handle(event):
            if self.world.chance(self.world.crashes_between):
                self.world.crash(self)
            if self.life != life:
                return
            self.do(action)
            if self.appends and self.world.is_eager and self.world.chance(0.05):
                # Senders continue while actions are executed.
                self.append(self.world.next_value())

    def do(self, action: Action) -> None:
        """Execute one action."""
        self.world.counts[type(action).__name__] += 1
        method = getattr(self, "_" + type(action).__name__.lower(), None)
        if method is not None:
            method(action)
        elif hasattr(action, "epoch"):
            self.world.calls.append((self.replica, action))

    # Its disk.

    def _persist(self, action: actions.Persist) -> None:
        harmed = self.world.counts["harms"] + self.world.counts["damages"]
        if self.facts.sound and not action.facts.sound and not harmed:
            raise Violation(f"{self.replica} is taken for damaged, and nothing has damaged it")
        gone = set(self.facts.damaged) - set(action.facts.damaged)
        if still := [each for each in gone if self.log.is_damaged(each)]:
            raise Violation(f"{self.replica} takes {still} for repaired")
        self.facts = action.facts

    def check_copy(self) -> None:
        """Find the first record with a flipped bit."""
        log = self.log
        if log.flips:
            at = log.record_before(min(log.flips))
            data = log.read(at, 0)
            if log.damaged_at(at, data) is not None:
                self.handle(events.DamageFound(at))

    def repair(self, others: list[Node]) -> None:
        """Rewrite damaged records from copies with intact ones."""
        log = self.log
        for position in self.facts.damaged:
            if not log.min_offset <= position < log.end:
                self.handle(events.DamageRepaired(position))
                continue
            for other in others:
                common = common_end(other.log.boundaries(), log.boundaries())
                try:
                    data = other.log.read(position, 0)
                except ValueError:
                    continue
                fits = data and position + len(data) <= common
                if fits and not other.log.is_damaged(position):
                    log.repair_nowait(position, data)
                    self.handle(events.DamageRepaired(position))
                    break

    def _comparecopies(self, action: actions.CompareCopies) -> None:
        """Both copies check themselves; the session ends."""
        for link in self.world.links:
            if link.follower is self:
                link.broken = True
        for who in (self, self.world.node(action.leader)):
            if who is not None:
                who.check_copy()

    def _openepoch(self, action: actions.OpenEpoch) -> None:
        self.world.truth.leads(self.replica, action.epoch, self.log)
        self.log.open_epoch(action.epoch)
        self.learn_values()

    def learn_values(self) -> None:
        """Build a new leader's knowledge of senders from its log."""
        self.ledger.update(
            (int(record.body), (record.first, record.end))
            for record in self.log.records()
            if record.kind == VALUE
        )

    def _writerecords(self, action: actions.WriteRecords) -> None:
        self.log.write(action.offset, action.data)

    def _sync(self, _action: actions.Sync) -> None:
        """The world decides when it happens."""

    def _truncate(self, action: actions.Truncate) -> None:
        self.noted = min(self.noted, action.offset)
        self.log.truncate(action.offset)

    def _needgeneration(self, action: actions.NeedGeneration) -> None:
        self.log.need_generation(action.end)

    def _commitupto(self, action: actions.CommitUpTo) -> None:
        end = min(action.end, self.log.end)
        if not self.is_plain and self.member.epoch:
            # A leader counts its own copy.
            self.noted = max(self.noted, self.log.durable_end)
        if end <= self.log.committed_end:
            return
        self.log.commit(end)
        epoch = self.facts.promised if self.is_plain else self.member.epoch
        self.world.truth.committed(self.replica, epoch, self.log, end)
        for value, (first, record_end) in list(self.waiting.items()):
            if record_end <= end:
                del self.waiting[value]
                self.world.acknowledge(value, first, record_end)

    def _allowdeletion(self, action: actions.AllowDeletion) -> None:
        self.log.delete_below(min(action.min_offset, self.log.committed_end))

    # Its connections.

    def _connect(self, action: actions.Connect) -> None:
        self.disconnect()
        self.target = action

    def _disconnect(self, _action: actions.Disconnect) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """End the connection to a leader."""
        self.target = None
        for number, link in list(self.links.items()):
            if link.follower is self:
                link.broken = True
                del self.links[number]

    def _sayhello(self, action: actions.SayHello) -> None:
        if action.session in self.links:
            link = self.links[action.session]
            link.up.append(events.HelloArrived(link.number, action.hello))

    def _acknowledge(self, action: actions.Acknowledge) -> None:
        self.noted = max(self.noted, action.ack.durable_end)
        if action.session in self.links:
            # The number of sent bytes is filled in at the receiver.
            link = self.links[action.session]
            link.up.append(events.AckArrived(link.number, action.ack, 0))

    def _saywelcome(self, action: actions.SayWelcome) -> None:
        link = self.links.get(action.session)
        if link is not None:
            link.next = action.welcome.truncate_to
            link.down.append(events.WelcomeArrived(link.number, action.welcome))

    def _endsession(self, action: actions.EndSession) -> None:
        link = self.links.pop(action.session, None)
        if link is not None:
            link.broken = True

    def _sendround(self, _action: actions.SendRound) -> None:
        for link in list(self.links.values()):
            self.send_chunk(link, 0)

    def send_chunk(self, link: Link, bytes_max: int) -> None:
        """Send the next bytes of a session; 0 bytes: only the committed end."""
        if link.leader is not self or link.next is None or not self.member.epoch:
            return
        if link.next < self.log.min_offset:
            # Deleted before it was sent: a new session orders that the copy begins again.
            link.broken = True
            return
        data = self.log.read(link.next, bytes_max) if bytes_max else b""
        if self.world.flips and self.log.damaged_at(link.next, data) is not None:
            # The follower refuses it, and requests that this copy checks itself.
            link.broken = True
            self.check_copy()
            return
        member, log = self.member, self.log
        known = (log.committed_end, log.min_offset, member.round, log.generation.identity)
        chunk = RecordChunk(member.epoch, self.replica, link.next, data, *known)
        link.next += len(data)
        link.down.append(events.ChunkArrived(link.number, chunk))

    # The service around the log.

    def _established(self, action: actions.Established) -> None:
        self.world.truth.leads(self.replica, action.epoch, self.log)
        self.learn_values()

    def _allowappends(self, action: actions.AllowAppends) -> None:
        self.appends = action.allowed

    def _roundagreed(self, action: actions.RoundAgreed) -> None:
        for read in list(self.reads):
            if read[0] <= action.round:
                self.reads.remove(read)
                self.world.truth.read(*read[1:])

    def _alarm(self, _action: actions.Alarm) -> None:
        """A reader reads it."""

    def _reopen(self, _action: actions.Reopen) -> None:
        self.break_links()
        self.start(is_new=False)

    def _remake(self, _action: actions.Remake) -> None:
        self.become_new()
        self.start()

    def _halt(self, action: actions.Halt) -> None:
        raise Violation(f"{self.replica}: {action.reason}")

    def append(self, value: int) -> None:
        """A sender sends a message, perhaps again."""
        if not self.appends or not (self.is_plain or self.member.role is Role.LEADING):
            return
        routes = self.world.routes
        if routes is not None:
            # A sender with later routes waits until the leader has them.
            served = None if self.topic is None else self.topic.served
            if served is None or served != routes.incarnation:
                return
            self.world.sent_to.setdefault(value, served)
        if value in self.ledger and "no_sequences" not in self.world.bugs:
            place = self.ledger[value]
        else:
            first = self.log.append(b"%d" % value)
            place = self.ledger[value] = (first, self.log.end)
        if place[1] <= self.log.committed_end:
            self.world.acknowledge(value, *place)
        else:
            self.waiting[value] = place

    def follow_routes(self, routes: Routes | None) -> None:
        """A leader receives the routes of the topic."""
        if routes is None or not self.appends or self.member.role is not Role.LEADING:
            return
        assert isinstance(self.log, StoredLog)
        self.topic = self.topic or TopicOfLeader(self.log)
        own = self.written_topics if "own_topics" in self.world.bugs else None
        self.written_topics = self.topic.follow(routes, own) or self.written_topics

    def ask(self) -> None:
        """A reader asks a question whose answer must be current."""
        if self.member.role is Role.LEADING:
            known = (self.world.truth.acked_end, self.log.committed_end)
            self.reads.append((self.member.round + 1, *known))
            self.handle(events.RoundAsked())

    # Its end.

    def become_new(self) -> None:
        """Start with an empty disk as another replica, except if the rule is broken."""
        self.break_links()
        self.forget()
        self.log = self.world.new_log()
        self.facts = ReplicaFacts()
        self.ledger = {}
        self.noted = 0
        self.written_topics = LogTopics()
        if "identity_by_name" not in self.world.bugs:
            self.replica = self.world.new_name()

    def forget_promise(self) -> None:
        """Restart without its promises (broken)."""
        self.facts = self.facts._replace(promised=0, led=0, version=StateVersion(0, 0))

    def lose_records(self, kept: int) -> None:
        """A damaged disk: whole records are lost, and the start reports this."""
        self.log.lose_records(kept)
        self.facts = self.facts._replace(sound=False)

    def describe(self) -> dict[str, Any]:
        """Describe the node, for a trace."""
        return {
            "replica": self.replica,
            "up": self.up,
            "role": "plain" if self.is_plain else self.member.role.value if self.up else "-",
            "facts": self.facts,
            "end": self.log.end,
            "durable": self.log.durable_end,
            "committed": self.log.committed_end,
            "min": self.log.min_offset,
            "boundaries": [tuple(each) for each in self.log.boundaries()],
        }
