"""Replica of the model: a log is a list of entries, and what happens happens at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from replica.model.violation import Violation
from rockoon_core import replication_rules as rules
from rockoon_core.replication_rules import Boundary, Config, Rank, Report

if TYPE_CHECKING:
    from replica.model.world import World

# Entries in a file; each file begins with what epochs began before it.
FILE_ENTRIES = 4


class Entry(NamedTuple):
    """One record. `value` is None where it opens an epoch, else a number; `topic` with no value
    says which incarnation of the topic begins.
    """

    epoch: int
    value: int | None = None
    topic: int = 0


class State(NamedTuple):
    """The register's, at one version."""

    version: int
    epoch: int
    leader: str | None
    at_least: Rank
    config: Config
    frozen: bool = False


def boundaries_of(log: list[Entry], first: int = 0) -> list[Boundary]:
    """Epochs of a log from an index on, by what each entry says."""
    found: list[Boundary] = []
    for index in range(first, len(log)):
        if not found or found[-1].epoch != log[index].epoch:
            found.append(Boundary(log[index].epoch, index, index + 1))
        else:
            found[-1] = found[-1]._replace(end=index + 1)
    return found


class Replica:
    """One process with one copy."""

    def __init__(self, world: World, name: int) -> None:
        self.world, self.name = world, name
        # Durable. `identity` is the store's id: an emptied disk is another replica.
        self.identity = f"r{name:03}"
        self.log: list[Entry] = []
        self.durable = self.promised = self.led = self.minimum = 0
        self.alone = False
        self.known: tuple[int, Config | None] = (0, None)
        self.sound, self.heal_at = True, None
        self.powered_down = False
        self.ledger: dict[int, int] = {}
        self.start()

    def start(self) -> None:
        self.up, self.role = True, "follower"
        self.seen: State | None = None
        # What is known to be; volatile here, in a store the recovery point's end.
        self.committed = 0
        self.session: int | None = None
        self.welcomed: int | None = None
        self.ends: dict[str, int] = {}
        self.sessions: dict[str, int] = {}
        self.epoch = self.epoch_start = 0
        self.configs: list[Config] = []
        self.pending: tuple[int, Config] | None = None
        # The version that a hand-over names; appends are barred while it is not None.
        self.moving: int | None = None
        self.waiting: dict[int, int] = {}
        self.reads: list[tuple[int, int, int]] = []
        self.round = 0
        self.rounds: dict[str, int] = {}
        self.topic_seen = 0

    def has(self, bug: str) -> bool:
        return bug in self.world.bugs

    # Knowing

    def learn(self, state: State) -> None:
        """A watch tells of the register; older news than what is known is ignored."""
        if not self.up or state.version < self.known[0]:
            return
        if self.seen and state.version <= self.seen.version:
            return
        self.seen = state
        self.known = (state.version, state.config)
        if self.role == "leader":
            self.leader_learns(state)
            return
        if state.epoch > self.promised and not (self.has("report_unpromised") and not state.leader):
            self.promised = state.epoch
            self.session = None
        votes = self.identity in state.config.in_sync
        if state.leader is None and state.epoch >= self.promised and votes:
            self.report(state.epoch)
        if state.leader == self.identity and state.epoch >= self.promised:
            self.lead(state)

    def leader_learns(self, state: State) -> None:
        if (state.epoch, state.leader) != (self.epoch, self.identity):
            self.step_down()
            return
        if self.pending and state.version > self.pending[0]:
            # Who compared with the old version can no longer succeed: the outcome is known.
            self.configs, self.pending = [state.config], None
        elif not self.pending and self.has("operator_quorum"):
            self.configs = [state.config]
        if self.moving is not None and state.version > self.moving:
            self.moving = None

    def report(self, epoch: int) -> None:
        self.sync()
        sound = self.sound or self.has("unsound_counts")
        rank = rules.rank_of(self.boundaries(), len(self.log))
        self.world.to_register("report", epoch, self.identity, Report(rank, sound))

    def boundaries(self) -> list[Boundary]:
        """Epochs, as the entries say that are left."""
        if not self.has("epochs_deleted"):
            # Each file's first entry repeats where epochs began.
            return boundaries_of(self.log)
        found: list[Boundary] = []
        epoch = 0
        for index in range(self.minimum, len(self.log)):
            entry = self.log[index]
            epoch = entry.epoch if entry.value is None and not entry.topic else epoch
            if not found or found[-1].epoch != epoch:
                found.append(Boundary(epoch, index, index + 1))
            else:
                found[-1] = found[-1]._replace(end=index + 1)
        return found

    # Leading

    def lead(self, state: State) -> None:
        resumes = self.led == state.epoch and self.alone
        if self.has("single_resumes"):
            resumes = state.config.in_sync == {self.identity}
        if self.led >= state.epoch and not resumes and not self.has("resumed_leader"):
            # Leadership does not survive the process: another epoch has to begin.
            self.world.to_register("depose", state.epoch)
            return
        lacks = rules.rank_of(self.boundaries(), len(self.log)) < state.at_least
        if lacks and not self.has("early_transfer"):
            self.world.to_register("depose", state.epoch)
            return
        if self.led < state.epoch:
            self.alone = True
        self.promised = self.led = self.epoch = state.epoch
        self.role, self.session = "leader", None
        self.epoch_start = len(self.log)
        self.ends, self.sessions, self.waiting, self.reads = {}, {}, {}, []
        self.rounds, self.round = {}, 0
        self.configs, self.pending, self.moving = [state.config], None, None
        opened = [i for i, each in enumerate(self.log) if each.epoch == state.epoch]
        if self.has("no_epoch_entry"):
            self.epoch_start = -1
        elif opened:
            self.epoch_start = opened[0]
        else:
            self.log.append(Entry(state.epoch))
        self.world.note_leader(self)

    def step_down(self) -> None:
        """The store is opened again: nothing in memory outlives the leadership."""
        self.role = "follower"
        self.waiting, self.reads = {}, []
        self.seen = None
        if not self.has("ledger_survives"):
            self.ledger = {}

    def append(self, value: int) -> None:
        if self.moving is not None:
            return
        place = next((i for i, each in enumerate(self.log) if each.value == value), None)
        if self.has("ledger_survives"):
            place = self.ledger.get(value, place)
        if place is None or self.has("no_sequences"):
            self.log.append(Entry(self.epoch, value, self.topic()))
            place = len(self.log) - 1
        self.waiting[value] = self.ledger[value] = place
        self.advance()

    def topic(self) -> int:
        """The topic's incarnation, as the log says; broken: as this process has seen."""
        if self.has("dropped_by_routes"):
            return self.topic_seen
        return next((e.topic for e in reversed(self.log) if e.topic and e.value is None), 0)

    def see_topic(self, incarnation: int) -> None:
        """Routes tell of another incarnation: its beginning goes into the log."""
        if self.moving is None and incarnation > self.topic():
            self.topic_seen = incarnation
            self.log.append(Entry(self.epoch, None, incarnation))
            self.advance()

    def durable_ends(self) -> dict[str, int]:
        own = len(self.log) if self.world.acks_written else self.durable
        return {**self.ends, self.identity: own}

    def advance(self) -> None:
        configs = self.configs[:1] if self.has("config_old_only") else self.configs
        start = self.epoch_start
        end = rules.committed_end(configs, self.durable_ends(), start, self.committed)
        if end > self.committed:
            self.committed = end
            self.world.note_committed(self)
        for value, index in list(self.waiting.items()):
            if index < self.committed:
                del self.waiting[value]
                self.world.note_acked(value, index)
        self.answer_reads()

    def propose(self, config: Config) -> None:
        """Change who votes: from now on both decide, until one is known to be in force."""
        ends = {**self.ends, self.identity: self.durable}
        if self.pending or self.moving is not None or self.seen is None:
            return
        allowed = rules.may_propose(config, ends, self.committed, self.epoch_start)
        if allowed or self.has("add_lagging"):
            self.pending = (self.seen.version, config)
            self.configs = [self.configs[0], config]
            self.ask_again()

    def ask_again(self) -> None:
        if self.pending and self.has("config_give_up") and self.world.chance(0.5):
            self.configs, self.pending = self.configs[:1], None
        elif self.pending:
            self.world.to_register("change", self.epoch, self.identity, *self.pending)

    def hand_over(self, successor: str) -> None:
        """Planned: nothing is appended any more; who has everything leads next."""
        if self.seen is None or successor == self.identity:
            return
        if successor not in self.configs[0].in_sync:
            return
        ready = self.ends.get(successor, 0) == len(self.log) == self.committed and not self.pending
        if ready or self.has("early_transfer"):
            self.moving = self.seen.version
            rank = rules.rank_of(self.boundaries(), len(self.log))
            asked = (self.epoch, self.identity, self.moving, successor, rank)
            self.world.to_register("transfer", *asked)

    def read(self, least: int) -> None:
        """A read that must not be older than what anybody was told: it waits for a round."""
        if self.has("unchecked_read"):
            self.world.note_read(least, self.committed)
        elif self.committed > self.epoch_start:
            self.round += 1
            self.reads.append((self.round, least, self.committed))

    def answer_reads(self) -> None:
        rounds = {**self.rounds, self.identity: self.round}
        agreed = min(rules.quorum_end(config, rounds) for config in self.configs)
        for item in list(self.reads):
            if item[0] <= agreed:
                self.reads.remove(item)
                self.world.note_read(*item[1:])

    # Following

    def connect(self) -> None:
        if not self.seen or self.role == "leader":
            return
        leader, epoch = self.seen.leader, self.seen.epoch
        if leader is None or leader == self.identity or epoch < self.promised:
            return
        self.session = self.world.new_session()
        hello = (epoch, self.identity, self.session, self.boundaries(), len(self.log))
        self.world.send(self.identity, leader, ("hello", *hello))

    def receive(self, sender: str, message: tuple[Any, ...]) -> None:
        if self.up:
            getattr(self, "on_" + message[0])(sender, *message[1:])

    def on_hello(
        self, _sender: str, epoch: int, who: str, session: int, theirs: list[Boundary], end: int
    ) -> None:
        if self.role != "leader" or epoch != self.epoch:
            return
        self.alone = False
        self.sessions[who] = session
        self.ends.pop(who, None)
        self.rounds.pop(who, None)
        point: int | None = self.minimum if not theirs else None
        if theirs:
            point = rules.consistent_point(self.boundaries(), theirs)
        if point is not None and point < self.minimum:
            point = None
        if self.has("no_truncation"):
            point = min(end, len(self.log))
        if self.has("epochs_deleted"):
            point = point or 0
        # What a new copy need not copy, because retention has taken it, it has as if by magic.
        gone = self.log[: self.minimum] if not end else []
        told = (epoch, session, point, len(self.log), gone)
        self.world.send(self.identity, who, ("welcome", *told))

    def on_welcome(
        self,
        _sender: str,
        epoch: int,
        session: int,
        point: int | None,
        leader_end: int,
        gone: list[Entry],
    ) -> None:
        if session != self.session or epoch < self.promised or self.role == "leader":
            return
        if self.welcomed == session:
            return  # Told once for each connection: what came since is not to be cut.
        if point is None:
            self.world.remake(self)
            return
        self.welcomed = session
        if self.has("truncate_to_committed"):
            point = min(self.committed, len(self.log), leader_end)
        if not self.log:
            # A copy begins where the leader's log does.
            self.log, self.minimum = gone, point
            self.durable = point
        elif not self.has("no_truncation"):
            if point < self.committed:
                raise Violation(f"{self.name} is told to cut what it knows to be committed")
            self.world.counts["truncations"] += point < len(self.log)
            del self.log[point:]
            self.durable = min(self.durable, point)
        self.promised = epoch
        if not self.sound:
            self.heal_at = leader_end
        self.acknowledge(epoch, session, 0)

    def on_chunk(
        self,
        _sender: str,
        epoch: int,
        session: int,
        offset: int,
        entries: list[Entry],
        known: tuple[int, int, int],
    ) -> None:
        behind = epoch < self.promised or session != self.session or session != self.welcomed
        if self.role == "leader" or (behind and not self.has("no_fence")):
            return
        if offset > len(self.log):
            return
        for index, entry in enumerate(entries, offset):
            if index == len(self.log):
                self.log.append(entry)
            elif self.log[index] != entry:
                if self.has("no_fence") or self.has("no_truncation"):
                    return
                raise Violation(f"{self.name} has another entry at {index} in epoch {epoch}")
        committed, number, minimum = known
        self.committed = max(self.committed, min(committed, len(self.log)))
        self.minimum = max(self.minimum, min(minimum, self.committed))
        self.acknowledge(epoch, session, number)

    def acknowledge(self, epoch: int, session: int, number: int) -> None:
        if self.welcomed != session and not self.has("ack_before_match"):
            return
        if self.world.acks_written:
            end = len(self.log)
        else:
            if self.world.chance(0.7):
                self.sync()
            end = self.durable
        if not self.sound and self.heal_at is not None and self.durable >= self.heal_at:
            self.sound, self.heal_at = True, None
        if self.seen and self.seen.leader is not None:
            ack = ("ack", epoch, self.identity, session, end, number)
            self.world.send(self.identity, self.seen.leader, ack)

    def on_ack(
        self, _sender: str, epoch: int, who: str, session: int, end: int, number: int
    ) -> None:
        if self.role != "leader" or epoch != self.epoch:
            return
        if self.sessions.get(who) != session and not self.has("old_session_acks"):
            return
        self.ends[who] = max(self.ends.get(who, 0), end)
        self.rounds[who] = max(self.rounds.get(who, 0), number)
        self.advance()

    def send_chunk(self, who: str) -> None:
        if self.role != "leader" or who not in self.sessions or who not in self.ends:
            return
        offset = min(self.ends[who], len(self.log))
        entries = self.log[offset : offset + self.world.random.randint(0, 4)]
        known = (self.committed, self.round, self.minimum)
        chunk = ("chunk", self.epoch, self.sessions[who], offset, entries, known)
        self.world.send(self.identity, who, chunk)

    def retain(self) -> None:
        """Delete whole files that each voter has, and that are committed; never all."""
        voters = frozenset[str]().union(*(config.in_sync for config in self.configs))
        others = [self.ends.get(who, 0) for who in voters - {self.identity}]
        if self.has("epochs_deleted"):
            others = []
        end = min([self.committed, self.durable, len(self.log) - 1, *others])
        self.minimum = max(self.minimum, end // FILE_ENTRIES * FILE_ENTRIES)

    # Living and dying

    def sync(self) -> None:
        self.durable = len(self.log)

    def crash(self, *, power: bool) -> None:
        self.up = False
        self.ledger = {}
        if power:
            kept = self.world.random.randint(self.durable, len(self.log))
            if kept < len(self.log) and self.world.acks_written:
                self.powered_down = True
            del self.log[kept:]
        if self.has("volatile_promise"):
            self.promised = self.led = 0
            self.known = (0, None)

    def restart(self) -> None:
        self.start()
        self.sync()
        if self.powered_down:
            # The machine lost power while acknowledged entries were not on disk: it says so.
            self.powered_down = False
            if not self.has("ack_unsynced"):
                self.sound, self.heal_at = False, None

    def lose_disk(self) -> None:
        """Another replica, except where the rule is broken."""
        self.log, self.ledger = [], {}
        self.durable = self.promised = self.led = self.minimum = 0
        self.alone, self.known = False, (0, None)
        self.sound, self.heal_at, self.powered_down = True, None, False
        if not self.has("identity_by_name"):
            self.world.identities += 1
            self.identity = f"r{self.world.identities:03}"
