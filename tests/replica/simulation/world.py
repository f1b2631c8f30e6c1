"""World: members of one log under a scheduler that tries to break them.

One seed is one run. The world has no clock: each possible event may happen now. Messages are late
by any number of steps, connections break anywhere, calls to nameservers are lost, arrive twice and
out of order, states are seen late; any replica is suspected at any time; processes die between any
two actions, machines lose power (unsynced bytes are cut), disks are lost or damaged; retention
deletes files; operators move replicas; etcd is restored from backups.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from replica.simulation.generations import check_generation
from replica.simulation.journaled_log import JournaledLog
from replica.simulation.nameserver_register import NameserverRegister
from replica.simulation.node import Link, Node
from replica.simulation.register import Register, first_state
from replica.simulation.stored_log import StoredLog
from replica.simulation.topics import Routes, check_topic
from replica.simulation.truth import Stuck, Truth, Violation
from rockoon_core.replication_rules import election_size
from rockoon_replica import events
from rockoon_replica.actions import Action, RecordCommittedEnd, ReportLog
from rockoon_replica.log_state import NO_RUN, LogState
from rockoon_replica.member import Role
from rockoon_replica.replica_facts import ReplicaFacts, facts_alone
from support.byte_log import VALUE, ByteLog

SHAPES = ("three", "three and a spare", "one", "five", "one becomes three")
# Not drawn, because the known seeds are older than this rule.
CHANGING = "three, one, three"
COPIES = 3
VOTERS = {
    CHANGING: COPIES,
    "three": 3,
    "three and a spare": 3,
    "one": 1,
    "five": 5,
    "one becomes three": 1,
}
SPARES = {"three and a spare": 1, "one becomes three": 2}


class Snapshot(NamedTuple):
    """Content of a node's disk at one moment, its log in memory."""

    log: ByteLog
    facts: ReplicaFacts
    noted: int

    @classmethod
    def of(cls, node: Node) -> "Snapshot":
        return cls(copied(node), node.facts, node.noted)

    def restore(self, node: Node) -> None:
        node.log, node.facts, node.noted = self


def copied(node: Node) -> ByteLog:
    """Return another log with the same content; it uses the world's random choices."""
    chance = node.world.random
    log = copy.deepcopy(node.log, {id(chance): chance})
    assert isinstance(log, ByteLog)
    return log


class World:
    """One run.

    Args:
        seed: of all random choices; it also chooses a shape, unless one is set.
        bugs: names of rules that nodes or the register break; members break their own.
        nameserver: whether the nameserver's own functions are the register.
        root: parent of real stores; None: logs are in memory.
        journals: whether the stores are journals of the offset service.
        old_disks: whether one disk may be restored from an older snapshot; logs are in memory.
        generations: whether all values belong to compacted topics, and leaders make generations of
            them; logs are in memory.
        flips: whether bits flip on disks, in one copy at a time; logs are in memory.
    """

    def __init__(
        self,
        seed: int,
        shape: str | None = None,
        bugs: tuple[str, ...] = (),
        *,
        nameserver: bool = False,
        root: Path | None = None,
        journals: bool = False,
        generations: bool = False,
        flips: bool = False,
        old_disks: bool = False,
    ) -> None:
        self.generations = generations
        self.flips = flips
        # Last start of each replica; None: starts are not counted.
        self.snapshots: dict[str, Snapshot] | None = {} if old_disks else None
        # Whether an election may wait for an operator: two disks lost the same records.
        self.may_hold = False
        self._runs = 0
        self.random = random.Random(seed)
        self.seed = seed
        self.shape = shape or SHAPES[seed % len(SHAPES)]
        self.bugs = frozenset(bugs)
        self._root, self._logs = root, list[StoredLog | JournaledLog]()
        self._journals = journals
        self.counts: Counter[str] = Counter()
        self.truth = Truth()
        self.calls: list[tuple[str, Action]] = []
        self.links: list[Link] = []
        self.cut: set[frozenset[str]] = set()
        self.unacked: set[int] = set()
        self.routes = None if root is None or journals else Routes()
        self.sent_to: dict[int, int] = {}
        # The seeds of broken rules are older than this event.
        self.is_eager = not bugs
        self.crashes_between = self.random.choice([0, 0.002, 0.01])
        self.full_disks = self.random.choice([0, 0.5])
        self.lag_max = self.random.choice([0, 100, 1 << 20])
        self.file_bytes = self.random.choice([150, 400, 1 << 20])
        if generations:
            self.file_bytes = 80
        self.steps = self._values = self._names = self._sessions = 0
        # At most one disk is lost or damaged in a run: committed records are on two.
        self._harms_left = 1
        self._restores_left = 1
        voters, spares = VOTERS[self.shape], SPARES.get(self.shape, 0)
        if self.shape == CHANGING or self.shape.startswith("one") or flips:
            self._harms_left = 0
        # Also with flipped bits, and if the log began with one voter, once it has three.
        self._old_disks_left = int(old_disks and self.shape not in (CHANGING, "one"))
        # The restored copy, and the committed end at that time.
        self._put_back: tuple[Node, int] | None = None
        self.nodes = [Node(self, self.new_name()) for _ in range(voters + spares)]
        names = [node.replica for node in self.nodes]
        copies = 3 if self.shape == "one becomes three" else voters
        first = first_state(names[:voters], names[voters:], voters // 2 + 1, copies)
        self.register: Register | NameserverRegister = Register(first, self.bugs)
        if nameserver:
            self.register = NameserverRegister(first)
        for node in self.nodes:
            node.start()
        weather = self._weather()
        self._happenings, self._weights = list(weather), list(weather.values())

    # Chances and names.

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def new_name(self) -> str:
        self._names += 1
        return f"r{self._names:03}"

    def new_log(self) -> ByteLog | StoredLog | JournaledLog:
        if self._root is None:
            return ByteLog(self.random, self.file_bytes)
        place = self._root / str(len(self._logs))
        if self._journals:
            self._logs.append(JournaledLog(place, self.random, self.file_bytes))
        else:
            self._logs.append(StoredLog(place, self.random))
        return self._logs[-1]

    def close(self) -> None:
        """Close the stores."""
        for log in self._logs:
            log.close()

    def node(self, replica: str | None) -> Node | None:
        return next((each for each in self.nodes if each.replica == replica and each.up), None)

    def leaders(self) -> list[Node]:
        copies = [node for node in self.nodes if node.up and not node.is_plain]
        return [node for node in copies if node.member.role is Role.LEADING]

    def acknowledge(self, value: int, first: int, end: int) -> None:
        """A sender gets the acknowledgement of its message."""
        self.counts["acks"] += 1
        self.unacked.discard(value)
        self.truth.acknowledged(value, first, end)

    # Steps.

    def run(self, steps: int) -> None:
        """Run some steps.

        Raises:
            Violation: a promise was broken.
        """
        for _ in range(steps):
            self.step()
        self.check_pairs()

    def step(self) -> None:
        self.steps += 1
        happening = self.random.choices(self._happenings, self._weights)[0]
        happening(self.random.choice(self.nodes))
        self.check()
        if self.steps % 40 == 0:
            self.check_pairs()

    def check(self) -> None:
        if self.register.state.held and not self.may_hold:
            raise Violation(f"an election waits for an operator: {self.register.state.held}")
        self.truth.check({node.replica: node.log for node in self.nodes})

    def check_pairs(self) -> None:
        logs = {node.replica: node.log for node in self.nodes}
        self.truth.check_pairs(logs)
        self.truth.check_values(logs)
        for node in self.leaders():
            check_topic(self, node, node.topic.served if node.topic else None)
            check_generation(self, node)

    def _weather(self) -> dict[Callable[[Node], None], float]:
        """Return the probabilities of events in this run: in calm runs logs grow, rough ones have
        faults."""
        draw = self.random
        rough = draw.choice([0.1, 0.3, 1.0, 3.0])
        weather: dict[Callable[[Node], None], float] = {
            self.deliver_some: 40,
            self.call_some: 8,
            self.learn: draw.choice([3, 12]),
            self.connect: 8,
            self.send: 14,
            self.append: draw.choice([3, 8]),
            self.sync: draw.choice([3, 8]),
            self.ask: draw.choice([1, 6]),
            self.repeat: 2,
            self.start: 2,
            self.join: 1,
            self.crash: rough * draw.choice([0, 0.3, 1]),
            self.suspect: rough * draw.choice([0.3, 1, 2]),
            self.hand_over: rough * draw.choice([0, 1, 3]),
            self.part: rough * draw.choice([0, 0.5, 2]),
            self.break_link: rough * draw.choice([0.1, 0.5, 2]),
            self.retain: draw.choice([0, 0.5, 2]),
            self.move: draw.choice([0, 1, 4]),
            self.stall: rough * draw.choice([0, 0.1]),
            self.freeze: draw.choice([0, 0, 0.05, 0.3]),
            self.adopt: 0.5,
        }
        if self.routes:
            weather |= {self.change_topic: draw.choice([0.3, 2]), self.follow_routes: 12}
        if "operator_writes" in self.bugs:
            weather[self.write_quorum] = 0.5
        if self.snapshots is not None:
            weather |= {self.record: 4, self.take_snapshot: 1, self.put_back: draw.choice([0.3, 2])}
            weather |= {self.crash: max(weather[self.crash], 0.3)}
        if self.shape == CHANGING:
            weather |= {self.wish: draw.choice([0.1, 0.5, 2]), self.go_on_alone: 1}
        # Some runs are mostly about one event, and otherwise calm enough to show it.
        focus = draw.choice([None, self.move, self.ask, self.hand_over, self.retain])
        if focus is not None:
            calm = {self.crash: 0.1, self.suspect: 0.5, self.part: 0.5, self.freeze: 0}
            weather |= {**calm, focus: 6, self.append: 8, self.call_some: 5}
        if self.generations:
            taken = draw.choice([0.3, 2])
            weather |= {self.compact: 1, self.take_generation: taken, self.retain: 6}
            weather |= {self.append: 10, self.sync: 10, self.move: 2}
        if self.flips:
            weather |= {self.flip: 0.5, self.check_copy: draw.choice([0.5, 3])}
            weather |= {self.repair: draw.choice([0.1, 1])}
        return weather

    # The network.

    def deliver_some(self, _node: Node) -> None:
        for _ in range(self.random.randint(1, 6)):
            if self.links:
                self.deliver(self.random.choice(self.links))

    def deliver(self, link: Link) -> None:
        """Deliver one message, in either direction, or the end of the connection."""
        if link.broken and (not (link.up or link.down) or self.chance(0.3)):
            self._close(link)
            return
        ends = frozenset((link.follower.replica, link.leader.replica))
        if ends in self.cut and not link.broken:
            return
        upward = bool(link.up) and (not link.down or self.chance(0.5))
        queue = link.up if upward else link.down
        if not queue:
            return
        event = queue.popleft()
        node = link.leader if upward else link.follower
        if link.number not in node.links:
            if not upward or not isinstance(event, events.HelloArrived) or link.broken:
                return
            node.links[link.number] = link
        if isinstance(event, events.AckArrived):
            event = event._replace(sent_end=link.next or 0)
        node.handle(event)

    def _close(self, link: Link) -> None:
        self.links.remove(link)
        for node in (link.follower, link.leader):
            if node.links.get(link.number) is link:
                del node.links[link.number]
                node.handle(events.SessionClosed(link.number))

    def connect(self, node: Node) -> None:
        target = node.target
        if target is None or any(link.follower is node for link in node.links.values()):
            return
        leader = self.node(target.leader)
        if leader is None or frozenset((node.replica, leader.replica)) in self.cut:
            return
        self._sessions += 1
        link = Link(self._sessions, node, leader)
        self.links.append(link)
        node.links[link.number] = link
        node.handle(events.SessionOpened(link.number))

    def send(self, _node: Node) -> None:
        for leader in [each for each in self.nodes if each.up and each.member.epoch]:
            for link in list(leader.links.values()):
                if self.chance(0.6) and not link.broken:
                    leader.send_chunk(link, self.random.choice([0, 1, 60, 400]))

    def part(self, node: Node) -> None:
        # Two replicas; or one and all nameservers.
        other = self.random.choice(self.nodes)
        self.cut.add(frozenset((node.replica, other.replica)))

    def join(self, _node: Node) -> None:
        self.cut.clear()

    def break_link(self, _node: Node) -> None:
        if self.links:
            self.random.choice(self.links).broken = True

    # Nameservers.

    def call_some(self, _node: Node) -> None:
        """Deliver any of the sent calls; some arrive twice, some never."""
        if not self.calls:
            return
        at = self.random.randrange(len(self.calls))
        who, action = self.calls[at]
        if not self.chance(0.05):
            del self.calls[at]
        if not self.chance(0.05) and frozenset((who,)) not in self.cut:
            before = self.register.state
            self.register.call(who, action)
            self.check_elected(before, who, action)

    def learn(self, node: Node) -> None:
        """A nameserver sends its current state."""
        if frozenset((node.replica,)) in self.cut:
            return
        if node.is_plain or self._is_refused(node):
            return
        if self.snapshots is not None and node.up and self.chance(0.7):
            self.register.come(node.replica, node.facts.run)
        past = self.register.past
        late = 0 if self.chance(0.7) else self.random.randint(0, min(5, len(past) - 1))
        node.handle(events.StateSeen(past[-1 - late]))
        if node.up:
            self.register.assign(node.replica)

    def repeat(self, node: Node) -> None:
        node.handle(events.RepeatDue())

    def suspect(self, node: Node) -> None:
        """Any replica suspects the leader, or an operator ends the epoch."""
        if self.chance(0.3):
            node.handle(events.LeaderLost())
        elif self.chance(0.5):
            node.handle(events.LeaderHeard())
        else:
            self.register.depose()

    def freeze(self, _node: Node) -> None:
        if not self._restores_left or len(self.register.past) < 8 or self.counts["old disks"]:
            return
        self._restores_left = 0
        past = [state for state in self.register.past[:-1] if not state.frozen]
        if self.chance(0.5):
            now = self.register.state
            changed = [s for s in past if s.epoch == now.epoch and s.config != now.config]
            past = changed or past
        restored = self.random.choice(past)
        self.counts["restores"] += 1
        self.register.restore(restored, frozen="restored_unfrozen" not in self.bugs)

    def adopt(self, _node: Node) -> None:
        facts = [node.facts for node in self.nodes if node.facts.config is not None]
        if not self.register.state.frozen or not facts:
            return
        newest = max(facts, key=lambda each: each.version)
        assert newest.config is not None
        if newest.config.in_sync <= {node.replica for node in self.nodes}:
            # A replica that is gone cannot report; then an operator names the set.
            self.register.adopt(facts)
            self.counts["adoptions"] += 1

    def move(self, _node: Node) -> None:
        """An operator requests another replica instead of one, preferably of a lost one."""
        voters = sorted(self.register.state.config.in_sync)
        names = {each.replica for each in self.nodes}
        lost = [who for who in voters if who not in names]
        spares = sorted(names - set(voters))
        if spares:
            leaves = self.random.choice(lost or voters)
            self.register.move(leaves, self.random.choice(spares))

    def wish(self, _node: Node) -> None:
        """An operator requests one copy, of this replica or any; or three again."""
        stays = self.random.choice([None, *sorted(self.register.state.config.in_sync)])
        self.register.set_copies(self.random.choice([1, 1, 2, 3]), stays)

    def go_on_alone(self, node: Node) -> None:
        """A replica's process is started as a broker of one copy."""
        voters = self.register.state.config.in_sync
        if node.is_plain or (voters != {node.replica} and not self.chance(0.05)):
            return
        self.crash(node)
        if node.up or not (node.facts.is_alone(node.replica) or self._may_go_alone(node)):
            return
        self.counts["alone"] += 1
        node.start_plain()

    def _may_go_alone(self, node: Node) -> bool:
        if "alone_unasked" in self.bugs and node.facts.config is not None:
            return True
        if not self.register.go_on_alone(node.replica, node.facts):
            return False
        # Written before any message is accepted; before that the reply may be lost.
        state = self.register.state
        node.facts = facts_alone(node.replica, state.epoch, state.version)
        return not self.chance(0.1)

    def _is_refused(self, node: Node) -> bool:
        """Return whether a store with messages does not belong to the log: its process ends, and it
        is emptied."""
        state = self.register.state
        if not node.up or state.frozen or node.replica in state.replicas or not node.log.records():
            return False
        node.stop()
        node.become_new()
        return True

    def write_quorum(self, _node: Node) -> None:
        size = len(self.register.state.config.in_sync)
        self.register.write_quorum(self.random.randint(size // 2 + 1, size))

    # Senders, readers, disks.

    def append(self, _node: Node) -> None:
        leaders = [each for each in self.nodes if each.up and each.appends]
        # More, if files must end before a deletion.
        for _ in range(4 if self.generations else 1):
            if leaders:
                self.random.choice(leaders).append(self.next_value())

    def next_run(self) -> int:
        """Return the number of a start of a process."""
        self._runs += 1
        return self._runs

    def next_value(self) -> int:
        """Return a message that is new, or was not acknowledged."""
        if self.unacked and self.chance(0.3):
            return self.random.choice(sorted(self.unacked))
        self._values += 1
        self.unacked.add(self._values)
        return self._values

    def change_topic(self, _node: Node) -> None:
        if self.routes:
            self.routes.change(self.random)
            # Its senders stop waiting.
            self.unacked.clear()

    def follow_routes(self, _node: Node) -> None:
        for node in self.leaders():
            node.follow_routes(self.routes)

    def ask(self, _node: Node) -> None:
        for node in self.leaders():
            node.ask()

    def sync(self, node: Node) -> None:
        if node.up:
            node.log.sync_nowait()
            if node.is_plain:
                node.synced_plainly()
            node.handle(events.Synced())

    def retain(self, _node: Node) -> None:
        """A leader deletes records that all voters have; if its disk is full, it waits only
        briefly."""
        for node in self.leaders():
            log = node.log
            waits = self.unacked
            unacked = (r.first for r in log.records() if r.kind == VALUE and int(r.body) in waits)
            end = min(log.committed_end, log.durable_end, next(unacked, log.end))
            if self.generations:
                end = min(end, log.generation.end)
            is_full = self.chance(self.full_disks)
            if not is_full or self.is_eager:
                log.delete_below(min(end, node.member.retention_end()))
            else:
                log.delete_below(end)
            if self.is_eager:
                node.handle(events.RetentionHeld(end if is_full else 0))

    def compact(self, _node: Node) -> None:
        """A job uploads a generation of the committed records to a leader."""
        for node in self.leaders():
            self.counts["generations"] += 1
            node.log.make_generation(self.counts["generations"])

    def take_generation(self, node: Node) -> None:
        """A follower has received its leader's generation."""
        leader = node.target and self.node(node.target.leader)
        if not node.up or leader is None or leader.is_plain:
            return
        if node.member.leader_generation == leader.log.generation.identity:
            node.log.take_generation(leader.log)

    def flip(self, node: Node) -> None:
        """A bit flips on the disk of a copy, while no other copy has a flipped bit or lacks records
        that were on its disk: a committed record may be in two copies only."""
        log, voters = node.log, self.register.state.config.in_sync
        if len(voters) < COPIES or self._has_flips() or self._is_behind():
            return
        # A restored disk may have the only copy of older records.
        begin = log.min_offset
        if self.snapshots is not None:
            begin = max(each.log.min_offset for each in self.nodes)
        if log.committed_end > begin:
            self.counts["flips"] += 1
            log.flips.add(self.random.randrange(begin, log.committed_end))

    def _has_flips(self) -> bool:
        return any(each.log.flips for each in self.nodes)

    def _is_behind(self) -> bool:
        """Return whether the restored disk still lacks records that were committed then."""
        if self._put_back is None:
            return False
        node, end = self._put_back
        return not node.facts.sound or node.log.end < end

    def check_copy(self, node: Node) -> None:
        """A copy compares its records with their checksums."""
        if node.up and not node.is_plain:
            node.check_copy()

    def repair(self, node: Node) -> None:
        """A copy rewrites its damaged records from another one."""
        if node.up and not node.is_plain:
            node.repair([each for each in self.nodes if each.up and each is not node])

    def check_elected(self, before: LogState, caller: str, action: Action) -> None:
        """Check that no copy with reported damage was elected while an intact one of equal rank had
        reported."""
        chosen = self.register.state.leader
        if chosen is None or before.leader or not isinstance(action, ReportLog):
            return
        told = {**before.reports, caller: action.report}
        for who in before.config.in_sync & told.keys():
            is_damaged = told[chosen].damaged and not told[who].damaged
            if is_damaged and told[who].rank >= told[chosen].rank:
                raise Violation(f"{chosen} is damaged and leads, {who} has as much")

    def stall(self, node: Node) -> None:
        node.handle(events.LogStalled())

    def hand_over(self, _node: Node) -> None:
        for node in self.leaders():
            gives_up = self.chance(0.4)
            node.handle(events.HandOverAbandoned() if gives_up else events.HandOverAsked())

    # Start and end.

    def start(self, node: Node) -> None:
        if node.up:
            return
        node.start()
        if self.shape == CHANGING and self.chance(0.5):
            self.register.come_back(node.replica, COPIES)

    def crash(self, node: Node) -> None:
        if not node.up:
            return
        self.counts["crashes"] += 1
        node.stop()
        if "volatile_promise" in self.bugs:
            node.forget_promise()
        power = self.chance(0.5)
        if power:
            # It may be as old as the last write by the system.
            node.noted = 0
        if self._root is not None and not power and self._harms_left and self.chance(0.5):
            # Not with the power: then the end may be lost without a trace of its acknowledgement.
            self._harms_left -= 1
            self.counts["damages"] += 1
            if not node.log.crash_damaged():
                node.become_new()
        else:
            node.log.crash(power=power)
            if node.log.end < node.noted:
                raise Violation(f"{node.replica} has nothing of its end, and was only killed")
        node.look_at_log()
        if self._harms_left and self.snapshots is None and self.chance(0.2):
            self._harms_left -= 1
            self.counts["harms"] += 1
            if self.chance(0.5) or self._root is not None:
                node.become_new()
            else:
                node.lose_records(self.random.randint(node.log.min_offset, node.log.end))

    # Older snapshots.

    def record(self, _node: Node) -> None:
        """A leader records its committed end."""
        for node in self.leaders():
            seen, end = node.facts.version, node.log.committed_end
            self.calls.append((node.replica, RecordCommittedEnd(node.member.epoch, seen, end)))

    def take_snapshot(self, node: Node) -> None:
        if self.snapshots is not None and not (node.is_plain or node.log.flips):
            self.snapshots[node.replica] = Snapshot.of(node)

    def put_back(self, node: Node) -> None:
        """Restore a disk from a snapshot from before the last registered start (rule 13)."""
        snapshot = (self.snapshots or {}).get(node.replica)
        known = self.register.state.runs.get(node.replica, NO_RUN)
        is_later = snapshot is not None and known.starts > snapshot.facts.run.starts
        # Not promised if etcd was restored from a backup, because it has lost starts.
        if snapshot is None or not is_later or self.counts["restores"]:
            return
        if not self._old_disks_left or len(self.register.state.config.in_sync) < COPIES:
            return
        if self._has_flips():
            return
        self._old_disks_left -= 1
        self._put_back = node, self.truth.end
        self.counts["harms"] += 1
        self.counts["old disks"] += 1
        node.stop()
        snapshot.restore(node)
        node.log.crash(power=self.chance(0.5))
        node.look_at_log()

    # The end.

    def settle(self, rounds: int = 400) -> None:
        """Run and connect all replicas without faults: the log must work again.

        Raises:
            Stuck: it does not.
            Violation: a value is lost.
        """
        self.crashes_between = 0
        self.cut.clear()
        if self.shape == CHANGING:
            self._settle_copies()
        value: int | None = None
        for number in range(rounds):
            for node in self.nodes:
                self.start(node)
                self.learn(node)
            self._operate(number)
            for node in self.leaders():
                node.handle(events.HandOverAbandoned())
            for node in self.nodes:
                self.connect(node)
                if number % 10 == 9:
                    node.handle(events.RepeatDue())
                if number % 40 == 39 and not node.member.is_matched:
                    node.handle(events.LeaderLost())
            while self.calls:
                self.call_some(self.nodes[0])
            self.send(self.nodes[0])
            for link in list(self.links):
                for _ in range(len(link.up) + len(link.down) + 1):
                    if link in self.links:
                        self.deliver(link)
            for node in self.nodes:
                self.sync(node)
                if self.generations:
                    self.take_generation(node)
                if self.flips:
                    self.check_copy(node)
                    self.repair(node)
            self.check()
            if self.routes and self.routes.incarnation is None:
                self.routes.change(self.random)
            self.follow_routes(self.nodes[0])
            leader = next((each for each in self.leaders() if each.appends), None)
            if leader is not None:
                value = value or self.next_value()
                leader.append(value)
            if value in self.truth.acked and self._is_whole():
                self.check_pairs()
                for node in self.nodes:
                    check_topic(self, node, self.routes.incarnation if self.routes else None)
                return
        raise Stuck(f"does not work again: {self.describe()}")

    def _settle_copies(self) -> None:
        """Give a log of one copy three copies again."""
        for node in self.nodes:
            if node.is_plain:
                node.stop()

    def _is_whole(self) -> bool:
        """Return whether all voters run and have all committed records."""
        config = self.register.state.config
        logs = {node.replica: node.log for node in self.nodes}
        damaged = self.flips and any(each.facts.damaged or each.log.flips for each in self.nodes)
        level = (who in logs and logs[who].end >= self.truth.end for who in config.in_sync)
        return all(level) and not damaged

    def _operate(self, number: int) -> None:
        """Operators do their work: adopt logs, and replace lost or stuck replicas."""
        if self.shape == CHANGING:
            self.register.set_copies(COPIES, None)
        if self.register.state.frozen:
            self.adopt(self.nodes[0])
            if self.register.state.frozen:
                self._adopt_by_name()
        if number % 30 != 29:
            return
        logs = {node.replica: node for node in self.nodes}
        for who in sorted(self.register.state.config.in_sync):
            if who not in logs or (number > 200 and logs[who].log.end < self.truth.end):
                spares = sorted(logs.keys() - self.register.state.config.in_sync)
                if not spares:
                    extra = Node(self, self.new_name())
                    self.nodes.append(extra)
                    extra.start()
                    spares = [extra.replica]
                self.register.move(who, spares[0])

    def _adopt_by_name(self) -> None:
        """A replica with knowledge is lost: an operator answers for the set that the others
        know."""
        facts = [node.facts for node in self.nodes if node.facts.config is not None]
        if facts:
            newest = max(facts, key=lambda each: each.version).config
            assert newest is not None
            here = {node.replica for node in self.nodes}
            if len(newest.in_sync & here) >= election_size(newest):
                self.register.adopt_by_name(facts)

    def describe(self) -> dict[str, Any]:
        """Describe the world, for a trace."""
        return {"register": self.register.state, "nodes": [each.describe() for each in self.nodes]}
