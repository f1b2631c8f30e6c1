"""Replica of the model: a log is a list of entries, and each operation is atomic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from replica.model.violation import Violation
from rockoon_core import replication_rules as rules
from rockoon_core.replication_rules import Boundary, Config, Rank, Report

if TYPE_CHECKING:
    from replica.model.world import World

# Entries in a file; each file begins with the starts of the earlier epochs.
FILE_ENTRIES = 4


class Entry(NamedTuple):
    """One record. `value` is None if it begins an epoch, else a number; `topic` without a value
    names the incarnation of the topic that begins.
    """

    epoch: int
    value: int | None = None
    topic: int = 0


class State(NamedTuple):
    """State of the register at one version."""

    version: int
    epoch: int
    leader: str | None
    at_least: Rank
    config: Config
    frozen: bool = False


def boundaries_of(log: list[Entry], first: int = 0) -> list[Boundary]:
    """Return the epochs of a log from an index on, from its entries."""
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
        # Known committed end; volatile here, the recovery point's end in a store.
        self.committed = 0
        self.session: int | None = None
        self.welcomed: int | None = None
        self.ends: dict[str, int] = {}
        self.sessions: dict[str, int] = {}
        self.epoch = self.epoch_start = 0
        self.configs: list[Config] = []
        self.pending: tuple[int, Config] | None = None
        # Version of a hand-over; while it is not None, appends are refused.
        self.moving: int | None = None
        self.waiting: dict[int, int] = {}
        self.reads: list[tuple[int, int, int]] = []
        self.round = 0
        self.rounds: dict[str, int] = {}
        self.topic_seen = 0

    def has(self, bug: str) -> bool:
        return bug in self.world.bugs

    # Knowledge.

    def learn(self, state: State) -> None:
        """Handle a state of the register from a watch; ignore it if it is older than the known
        one."""
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
            # A compare with the old version can no longer succeed: the outcome is known.
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
        """Epochs, from the remaining entries."""
        if not self.has("epochs_deleted"):
            # Each file's first entry repeats the starts of the epochs.
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

    # Leading.

    def lead(self, state: State) -> None:
        resumes = self.led == state.epoch and self.alone
        if self.has("single_resumes"):
            resumes = state.config.in_sync == {self.identity}
        if self.led >= state.epoch and not resumes and not self.has("resumed_leader"):
            # Leadership does not survive the process: another epoch must begin.
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
        """Open the store again: no state in memory outlives the leadership."""
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
        """Return the topic's incarnation by the log; broken: by the memory of this process."""
        if self.has("dropped_by_routes"):
            return self.topic_seen
        return next((e.topic for e in reversed(self.log) if e.topic and e.value is None), 0)

    def see_topic(self, incarnation: int) -> None:
        """Handle routes with another incarnation: its beginning is written to the log."""
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
        """Change the voters: from now on both sets decide, until one is known to be in use."""
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
        """Planned hand-over: no append is accepted any more, and a replica with the whole log leads
        next."""
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
        """Read with linearizability: the read waits for a round of confirmations."""
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

    # Following.

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
        # A new copy gets without a transfer the entries that retention has already deleted.
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
            return  # Once for each connection: later entries must not be cut.
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
        """Delete whole files that are committed and that each voter has; never all of them."""
        voters = frozenset[str]().union(*(config.in_sync for config in self.configs))
        others = [self.ends.get(who, 0) for who in voters - {self.identity}]
        if self.has("epochs_deleted"):
            others = []
        end = min([self.committed, self.durable, len(self.log) - 1, *others])
        self.minimum = max(self.minimum, end // FILE_ENTRIES * FILE_ENTRIES)

    # Start and end.

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
            # The machine lost power while acknowledged entries were not on the disk: it reports
            # this.
            self.powered_down = False
            if not self.has("ack_unsynced"):
                self.sound, self.heal_at = False, None

    def lose_disk(self) -> None:
        """Become another replica, except if the rule is broken."""
        self.log, self.ledger = [], {}
        self.durable = self.promised = self.led = self.minimum = 0
        self.alone, self.known = False, (0, None)
        self.sound, self.heal_at, self.powered_down = True, None, False
        if not self.has("identity_by_name"):
            self.world.identities += 1
            self.identity = f"r{self.world.identities:03}"
