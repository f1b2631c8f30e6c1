"""World of the model: replicas, senders and the register under a scheduler that causes faults.

One seed is one run. The world has no clock: each possible event may happen now. This includes clock
skew, pauses and slow networks: any replica may be suspected at any time; messages are lost,
repeated, late by any number of steps, and overtake each other; processes die, machines lose power
(unsynced bytes are cut), disks are lost, operators and restored backups interfere.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from replica.model.replica import Entry, Replica, State
from replica.model.violation import Violation
from rockoon_core import replication_rules as rules
from rockoon_core.replication_rules import Config, Rank, Report

EPOCHS_LEFT_OUT = 65_536


class World:
    """One run.

    Args:
        seed: of all random choices.
        size: number of replicas; `voters` of them vote at first (0: all).
        min_in_sync, commit ("quorum" or "all"): number of copies that make an entry committed.
        flush: "sync": replicas acknowledge synced entries; "async": written entries.
        bugs: names of broken rules.
        disk_losses: maximum number of lost disks.
    """

    def __init__(
        self,
        seed: int,
        size: int = 3,
        min_in_sync: int = 2,
        commit: str = "quorum",
        flush: str = "sync",
        bugs: tuple[str, ...] = (),
        disk_losses: int = 1,
        voters: int = 0,
    ) -> None:
        self.random = random.Random(seed)
        self.bugs, self.min_in_sync, self.commit = frozenset(bugs), min_in_sync, commit
        self.acks_written = flush == "async" or "ack_unsynced" in self.bugs
        self.identities = size - 1
        self.disk_losses = disk_losses
        self.restores = 1
        self.topic = 0
        self.replicas = [Replica(self, name) for name in range(size)]
        first = frozenset(each.identity for each in self.replicas[: voters or size])
        self.register = State(1, 0, None, Rank(0, 0), self.config(first))
        self.reports: dict[str, Report] = {}
        self.history = [self.register]
        self.bag: list[tuple[Any, ...]] = []
        self.cut: set[frozenset[str]] = set()
        self.sessions = self.values = self.steps = 0
        self.truth: list[Entry] = []
        self.committed_in: list[int] = []
        self.acked: dict[int, int] = {}
        self.observed: dict[int, Entry] = {}
        self.leaders: dict[int, str] = {}
        self.committers: dict[int, str] = {}
        self.unacked: set[int] = set()
        self.counts: Counter[str] = Counter()
        weather = self.weather()
        self.happenings, self.weights = list(weather), list(weather.values())

    def config(self, voters: frozenset[str]) -> Config:
        size = len(voters)
        quorum = size if self.commit == "all" else rules.quorum_of(size, self.min_in_sync)
        return Config(voters, min(quorum, size) if self.commit == "all" else quorum)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # Checks.

    def note_leader(self, replica: Replica) -> None:
        self.counts["elections"] += 1
        if self.leaders.setdefault(replica.epoch, replica.identity) != replica.identity:
            raise Violation(f"two leaders in epoch {replica.epoch}")
        # A late leader of an old epoch may lack entries that later ones committed.
        self.check_prefix(replica, "leads without", before=replica.epoch)

    def check_prefix(self, replica: Replica, what: str, before: int = 1 << 40) -> None:
        for index, entry in enumerate(self.truth):
            if self.committed_in[index] < before and replica.log[index : index + 1] != [entry]:
                raise Violation(f"{replica.name} {what} committed entry {index} {entry}")

    def note_committed(self, replica: Replica) -> None:
        self.counts["commits"] += 1
        if self.committers.setdefault(replica.epoch, replica.identity) != replica.identity:
            raise Violation(f"two replicas commit in epoch {replica.epoch}")
        for index, entry in enumerate(replica.log[: replica.committed]):
            if index == len(self.truth):
                self.truth.append(entry)
                self.committed_in.append(replica.epoch)
                self.check_topics()
            elif self.truth[index] != entry:
                raise Violation(f"{replica.name} commits {entry} at {index}, not what was there")

    def check_topics(self) -> None:
        """A deletion of a topic hides the earlier entries: each incarnation begins once."""
        begun = [each.topic for each in self.truth if each.topic and each.value is None]
        if len(begun) > 1 and begun[-1] <= begun[-2]:
            raise Violation(
                f"incarnation {begun[-1]} begins again, and hides acknowledged messages"
            )

    def note_acked(self, value: int, index: int) -> None:
        self.counts["acks"] += 1
        self.unacked.discard(value)
        if self.acked.setdefault(value, index) != index:
            raise Violation(f"{value} was acknowledged at {self.acked[value]} and at {index}")
        if index >= len(self.truth) or self.truth[index].value != value:
            raise Violation(f"{value} was acknowledged and is not committed at {index}")

    def note_read(self, least: int, committed: int) -> None:
        self.counts["reads"] += 1
        if committed < least:
            raise Violation(f"a read of {committed} entries where {least} had been acknowledged")

    def observe(self, replica: Replica) -> None:
        """Read at any replica, leader or follower."""
        end = len(replica.log) if "read_written" in self.bugs else replica.committed
        for index, entry in enumerate(replica.log[:end]):
            if self.observed.setdefault(index, entry) != entry:
                raise Violation(f"a reader sees {entry} at {index}, another saw something else")

    def check(self) -> None:
        """Check log matching, and that no entry is there twice; after every step."""
        seen: dict[tuple[int, int], tuple[Entry, Entry | None]] = {}
        for replica in self.replicas:
            log = replica.log
            for index, entry in enumerate(log):
                both = (entry, log[index - 1] if index else None)
                if seen.setdefault((index, entry.epoch), both) != both:
                    raise Violation(f"logs differ at {index} in epoch {entry.epoch}")
            values = [entry.value for entry in log if entry.value is not None]
            if len(values) != len(set(values)):
                raise Violation(f"{replica.name} has a message twice")

    # Messages.

    def new_session(self) -> int:
        self.sessions += 1
        return self.sessions

    def send(self, sender: str, receiver: str, message: tuple[Any, ...]) -> None:
        self.bag.append(("peer", sender, receiver, message))

    def to_register(self, *request: Any) -> None:
        self.bag.append(("register", request))

    def find(self, identity: str) -> Replica | None:
        return next((each for each in self.replicas if each.identity == identity), None)

    def remake(self, replica: Replica) -> None:
        """Its log cannot be made equal: it begins again, once it does not vote any more."""
        if replica.identity not in self.register.config.in_sync:
            replica.lose_disk()
            replica.start()

    def deliver(self) -> None:
        if not self.bag:
            return
        index = self.random.randrange(len(self.bag))
        item = self.bag[index]
        if not self.chance(0.05):  # else it comes again, later
            self.bag[index] = self.bag[-1]
            self.bag.pop()
        if self.chance(0.03):
            return
        if item[0] == "register":
            self.apply(*item[1])
            return
        _, sender, receiver, message = item
        replica = self.find(receiver)
        if replica is not None and frozenset((sender, receiver)) not in self.cut:
            replica.receive(sender, message)

    # The register.

    def apply(self, kind: str, epoch: int, *arguments: Any) -> None:
        """Run one transaction of etcd."""
        if self.register.epoch == epoch and not self.register.frozen:
            getattr(self, "apply_" + kind)(*arguments)

    def put(self, **changes: Any) -> None:
        self.register = self.register._replace(version=self.register.version + 1, **changes)
        self.history.append(self.register)

    def apply_depose(self) -> None:
        self.reports = {}
        self.put(epoch=self.register.epoch + 1, leader=None)

    def apply_report(self, who: str, report: Report) -> None:
        register = self.register
        if register.leader is not None or who not in register.config.in_sync:
            return
        self.reports[who] = report
        config = register.config
        if "small_election" in self.bugs:
            config = config._replace(quorum=min(config.quorum + 1, len(config.in_sync)))
        leader = rules.elected(config, self.reports)
        if leader is None:
            self.put()
            return
        at_least = self.reports[leader].rank
        if "elect_first" in self.bugs:
            leader, at_least = next(iter(self.reports)), Rank(0, 0)
        if "elect_longest" in self.bugs:
            leader = max(self.reports, key=lambda each: self.reports[each].rank.end)
            at_least = Rank(0, 0)
        self.put(leader=leader, at_least=at_least)

    def apply_change(self, who: str, version: int, config: Config) -> None:
        if (self.register.version, self.register.leader) == (version, who):
            self.counts["changes"] += 1
            self.put(config=config)

    def apply_transfer(self, who: str, version: int, successor: str, at_least: Rank) -> None:
        register = self.register
        known = version == register.version or "late_transfer" in self.bugs
        if register.leader != who or not known or successor not in register.config.in_sync:
            return
        self.counts["transfers"] += 1
        self.reports = {}
        self.put(epoch=register.epoch + 1, leader=successor, at_least=at_least)

    # Events.

    def weather(self) -> dict[Callable[[Replica, Replica], None], float]:
        """Return the probabilities of events in this run: in calm runs logs grow, rough ones have
        faults."""
        draw = self.random
        rough = draw.choice([0.1, 0.3, 1.0, 3.0])
        weather: dict[Callable[[Replica, Replica], None], float] = {
            self.deliver_some: 60,
            self.do_send: 14,
            self.do_learn: draw.choice([3, 12, 12]),
            self.do_connect: 8,
            self.do_append: draw.choice([3, 8]),
            self.do_sync: draw.choice([1, 6]),
            self.do_read: 3,
            self.do_change: draw.choice([0, 0.5, 3, 8]),
            self.do_depose: rough * draw.choice([0.1, 0.5, 1]),
            self.do_transfer: rough * draw.choice([0, 1, 3]),
            self.do_crash: rough * draw.choice([0, 0.3, 1]),
            self.do_restart: 2,
            self.do_cut: rough * draw.choice([0, 0.5, 2]),
            self.do_join: 1,
            self.do_retain: draw.choice([0, 1]),
            self.do_topic: draw.choice([0, 0.2]),
            self.do_restore: draw.choice([0, 0, 0.1]),
            self.do_adopt: 0.2,
        }
        if "late_transfer" in self.bugs:
            weather |= {self.do_resume: 3, self.do_transfer: 3}
        if "operator_quorum" in self.bugs:
            weather[self.do_operator] = 0.5
        return weather

    def step(self) -> None:
        self.steps += 1
        self.random.choices(self.happenings, self.weights)[0](
            self.random.choice(self.replicas), self.random.choice(self.replicas)
        )
        self.check()

    def active_leaders(self) -> list[Replica]:
        return [each for each in self.replicas if each.up and each.role == "leader"]

    def some_leader(self, replica: Replica) -> Replica:
        leaders = self.active_leaders()
        return self.random.choice(leaders) if leaders else replica

    def deliver_some(self, _replica: Replica, _other: Replica) -> None:
        self.deliver()

    def do_send(self, replica: Replica, other: Replica) -> None:
        if replica.up:
            leader = next(
                (r for r in self.replicas if r.role == "leader" and self.chance(0.7)), replica
            )
            leader.send_chunk(other.identity)

    def do_learn(self, replica: Replica, _other: Replica) -> None:
        """Any nameserver replies, with the state that it knows."""
        if replica.up:
            late = 0 if self.chance(0.7) else self.random.randint(0, min(6, len(self.history) - 1))
            replica.learn(self.history[-1 - late])

    def do_connect(self, replica: Replica, _other: Replica) -> None:
        if replica.up and (replica.session is None or self.chance(0.1)):
            replica.connect()

    def do_append(self, _replica: Replica, _other: Replica) -> None:
        leaders = self.active_leaders()
        if not leaders:
            return
        if self.unacked and self.chance(0.3):
            value = self.random.choice(sorted(self.unacked))
        else:
            self.values += 1
            value = self.values
            self.unacked.add(value)
        self.random.choice(leaders).append(value)

    def do_sync(self, replica: Replica, _other: Replica) -> None:
        if not replica.up:
            return
        replica.sync()
        if replica.role == "leader":
            replica.advance()
        elif replica.session and self.chance(0.5):
            replica.acknowledge(replica.promised, replica.session, 0)

    def do_read(self, replica: Replica, _other: Replica) -> None:
        if replica.up:
            self.observe(replica)
            if replica.role == "leader":
                replica.read(max((index + 1 for index in self.acked.values()), default=0))

    def do_change(self, replica: Replica, other: Replica) -> None:
        replica = self.some_leader(replica)
        if not replica.up or replica.role != "leader":
            return
        if replica.pending:
            replica.ask_again()
            return
        voters, who = replica.configs[0].in_sync, other.identity
        if who in voters:
            absent = sorted(each for each in voters if self.find(each) is None)
            voters = voters - {self.random.choice(absent) if absent else who}
        elif self.chance(0.5):
            voters = voters | {who}
        else:  # One voter instead of another one, in one change.
            others = sorted(voters - {replica.identity})
            voters = voters - {self.random.choice(others)} | {who} if others else voters | {who}
        if replica.identity in voters and len(voters) >= self.min_in_sync:
            replica.propose(self.config(voters))

    def do_depose(self, _replica: Replica, _other: Replica) -> None:
        self.to_register("depose", self.register.epoch)

    def do_transfer(self, replica: Replica, other: Replica) -> None:
        replica = self.some_leader(replica)
        if replica.up and replica.role == "leader":
            ready = [who for who, end in replica.ends.items() if end == len(replica.log)]
            any_of = self.random.choice(ready) if ready and self.chance(0.9) else other.identity
            replica.hand_over(any_of)

    def do_resume(self, _replica: Replica, _other: Replica) -> None:
        """A leader stops waiting for its hand-over (broken)."""
        for each in self.active_leaders():
            each.moving = None

    def do_operator(self, _replica: Replica, _other: Replica) -> None:
        size = len(self.register.config.in_sync)
        quorum = self.random.randint(size // 2 + 1, size)
        self.put(config=self.register.config._replace(quorum=quorum))

    def do_retain(self, replica: Replica, _other: Replica) -> None:
        leader = self.some_leader(replica)
        if leader.up and leader.role == "leader":
            leader.retain()

    def do_topic(self, replica: Replica, _other: Replica) -> None:
        """Delete the topic and create it again, or notify a leader of this."""
        if self.chance(0.3):
            self.topic += 1
        leader = self.some_leader(replica)
        if leader.up and leader.role == "leader" and self.topic:
            leader.see_topic(self.topic)

    def do_restore(self, _replica: Replica, _other: Replica) -> None:
        """Restore etcd from a backup; its cluster id shows this."""
        if not self.restores or len(self.history) < 8 or self.register.frozen:
            return
        self.restores = 0
        now = self.register
        same = [s for s in self.history if s.epoch == now.epoch and s.config != now.config]
        state = self.random.choice(same or self.history[:-1])
        self.counts["restores"] += 1
        self.reports = {}
        if "restored_unfrozen" in self.bugs:
            # Users of numbers that only increase are notified: these are.
            state = state._replace(version=now.version + 1)
        else:
            state = state._replace(frozen=True)
        self.register = state
        self.history.append(state)

    def do_adopt(self, _replica: Replica, _other: Replica) -> None:
        """An operator lets a frozen log continue, with the reports of all its replicas."""
        told = [each.known for each in self.replicas if each.known[1] is not None]
        if not self.register.frozen or not told:
            return
        version, config = max(told, key=lambda known: known[0])
        assert config is not None
        if config.in_sync <= {each.identity for each in self.replicas}:
            epoch = max(self.register.epoch, *(each.promised for each in self.replicas))
            self.register = self.register._replace(
                version=max(version, *(each.version for each in self.history)) + 1,
                epoch=epoch + EPOCHS_LEFT_OUT,
                leader=None,
                config=config,
                frozen=False,
            )
            self.history.append(self.register)

    def do_crash(self, replica: Replica, _other: Replica) -> None:
        if not replica.up:
            return
        self.counts["crashes"] += 1
        # With acknowledgements before the sync, at most as many machines may lose power at once as
        # an entry has copies besides the first; with flush=sync any number.
        shaky = sum(1 for each in self.replicas if each.powered_down or not each.sound)
        spared = self.acks_written and shaky >= self.min_in_sync - 1
        replica.crash(power=self.chance(0.5) and not spared)
        if self.disk_losses and self.chance(0.1):
            self.disk_losses -= 1
            replica.lose_disk()

    def do_restart(self, replica: Replica, _other: Replica) -> None:
        if not replica.up:
            replica.restart()

    def do_cut(self, replica: Replica, other: Replica) -> None:
        self.cut.add(frozenset((replica.identity, other.identity)))

    def do_join(self, _replica: Replica, _other: Replica) -> None:
        self.cut.clear()
