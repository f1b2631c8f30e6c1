"""Replica: runs a `Member` with a real log, real streams, nameservers and a clock.

Invariants:
- One task passes events to the member, one at a time, and carries out its actions in order before
  the next event. All callers that wait, wait for that task.
- Calls to nameservers and messages to replicas may be lost; `RepeatDue` repeats them.
- It runs once. When the member has returned one of its last actions, `run` returns it: the caller
  opens the log again and creates another replica.
"""

import asyncio
import heapq
import itertools
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from grpc import aio

from rockoon_core.channels import Channels
from rockoon_core.clock import Backoff
from rockoon_core.errors import InvalidArgument, NotReady, RockoonError
from rockoon_proto.v1 import replica_pb2 as pb
from rockoon_replica import actions
from rockoon_replica.actions import Action
from rockoon_replica.copy_check import CopyCheck
from rockoon_replica.events import (
    DamageRepaired,
    Event,
    HandOverAbandoned,
    HandOverAsked,
    LogStalled,
    RepeatDue,
    RetentionHeld,
    RoundAsked,
    Started,
    StateSeen,
    Synced,
    WritesChecked,
)
from rockoon_replica.following import Following
from rockoon_replica.leading import Leading
from rockoon_replica.log import LogFull, ReplicatedLog, WriteCheck
from rockoon_replica.log_state import LogState
from rockoon_replica.member import Member, Role
from rockoon_replica.peers import Peers
from rockoon_replica.replica_facts import ReplicaFacts
from rockoon_replica.replica_file import ReplicaFile
from rockoon_replica.standing import CopyRecord, FollowerProgress
from rockoon_replica.wire import boundaries_to_wire

log = logging.getLogger(__name__)

# Initial limit of a leader's silence; see `Member.patience`.
SILENT_SECONDS = 2.0
REPEAT_SECONDS = 1.0
WRITES_CHECK_SECONDS = 0.25
# Minimum time between two hand-overs of one replica because clients' records are refused. The
# limit of a disk's usage can depend on facts that only a leader has: leadership would alternate.
REFUSAL_SECONDS = 60.0
# A sync of more seconds counts as hung: another replica should lead.
STALLED_SECONDS = 10.0
# Interval at which a leader records its committed end with the nameservers.
RECORD_SECONDS = 5.0
CALLS_MAX = 8
# How long a damaged leader refuses appends while it hands over.
DAMAGED_HAND_OVER_SECONDS = 2.0
# Pause before it tries again.
DAMAGED_PAUSE_SECONDS = 60.0

LogStateCall = (
    actions.ReportLog
    | actions.SuspectLeader
    | actions.RetractSuspicion
    | actions.Resign
    | actions.ConfirmEpoch
    | actions.RecordCommittedEnd
    | actions.ChangeInSync
    | actions.HandOver
)
LastAction = actions.Reopen | actions.Remake | actions.Halt


class LogStateClient(Protocol):
    """Interface of a replica to the state of its log, which the nameservers store in etcd."""

    async def ask(self, call: LogStateCall) -> LogState | None:
        """Make a call to a nameserver; returns the log's state after it, if the reply has one.

        Raises:
            RockoonError: the call was refused, or no nameserver replied. It may have had an effect.
        """


class Owner(Protocol):
    """The service that uses a replicated log. The task that handles events calls its methods: they
    must return quickly.
    """

    def established(self, epoch: int) -> None:
        """This replica leads: start the work of a leader."""

    def readiness_changed(self) -> None:
        """The replica has become ready or unready (`record.is_ready`)."""

    def committed(self, end: int) -> None:
        """The committed end has increased: the service may show more records to readers, and answer
        waiting calls.
        """

    def may_delete(self, min_offset: int) -> None:
        """The leader has deleted its records below a position: this log may delete them too."""


class Replica:
    """Runs one replica of one log: carries out the decisions of its `Member`.

    Args:
        cluster: the cluster's name.
        replica_id: id of the replica, which is the id of its store.
        replicated: the log.
        file: keeps the facts.
        facts: read from it, or the first ones.
        register: client of the state of the log.
        address_of: address of a replica by its id; None while it is unknown.
        record: state of the process over all runs; default: a new one.
        crc32: like `zlib.crc32`, for bytes that copies exchange.
        silent_seconds: see SILENT_SECONDS.
        stalled_seconds: see STALLED_SECONDS.
        scrub_bytes_per_second: rate at which committed records are checked; 0: no scrub.
        record_seconds: see RECORD_SECONDS.
    """

    def __init__(
        self,
        *,
        log_name: str,
        cluster: str,
        replica_id: str,
        replicated: ReplicatedLog,
        file: ReplicaFile,
        facts: ReplicaFacts,
        register: LogStateClient,
        channels: Channels,
        address_of: Callable[[str], str | None],
        owner: Owner,
        record: CopyRecord | None = None,
        crc32: Callable[[bytes], int] = zlib.crc32,
        silent_seconds: float = SILENT_SECONDS,
        stalled_seconds: float = STALLED_SECONDS,
        scrub_bytes_per_second: int = 0,
        record_seconds: float = RECORD_SECONDS,
    ) -> None:
        self._log_name, self._log = log_name, replicated
        self._channels, self._address_of = channels, address_of
        self._crc32 = crc32
        self._file, self._register, self._owner = file, register, owner
        self._stalled_seconds, self._record_seconds = stalled_seconds, record_seconds
        self.member, self._run = Member(replica_id, facts, replicated), facts.run
        numbers = itertools.count(1)
        self.record = record or CopyRecord(asyncio.get_running_loop().time())
        self.check = CopyCheck(
            log_name,
            replicated,
            Peers(log_name, cluster, channels, address_of, self._others, crc32),
            self._post,
            lambda: self.member.facts.damaged,
            self._not_repaired,
            self.record.checks,
            scrub_bytes_per_second,
        )
        self._leading = Leading(
            log_name, replica_id, replicated, self._post, numbers, crc32, self.check.add
        )
        self._following = Following(
            log_name,
            cluster,
            channels,
            address_of,
            self._post,
            numbers,
            lambda: self.member.patience(silent_seconds),
            crc32,
        )
        self._events: asyncio.Queue[tuple[Event | None, asyncio.Future[None]]] = asyncio.Queue()
        self._sync_wanted = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._calls = 0
        self._call_lost = asyncio.Event()
        self._hand_over_after = 0.0
        self._is_over = False
        self._over = asyncio.Event()
        self._last: LastAction | None = None
        self._waiting = CommitWaits(self._ask_round)
        self.state: LogState | None = None
        # Set while appends are allowed.
        self.may_append = asyncio.Event()
        # Read by observers, like `member`.
        self.replicated = replicated
        self.progress: Mapping[str, FollowerProgress] = self._leading.progress
        # Why the leader's last chunk could not be written.
        self.refusal = ""

    # Used by the service.

    @property
    def role(self) -> Role:
        return self.member.role

    @property
    def epoch(self) -> int:
        """The epoch in which this replica leads; 0 if it does not lead."""
        return self.member.epoch

    @property
    def is_ready(self) -> bool:
        """True if this replica leads, or has a committing leader's records; see `Member`."""
        return not self._is_over and self.member.is_ready

    @property
    def retention_end(self) -> int:
        """Position up to which a leader may delete its log."""
        return self.member.retention_end()

    @property
    def appends_allowed(self) -> bool:
        """True if records appended now can be committed: this replica leads enough voters."""
        return self.may_append.is_set()

    def state_received(self, state: LogState) -> None:
        """Process a state of the log that a nameserver has sent; states may arrive out of order."""
        if self.state is None or state.version > self.state.version:
            self.state = state
        self._post(StateSeen(state))

    def leader_channel(self) -> aio.Channel | None:
        """Channel to the leader; None while its address is unknown."""
        leader = self.state.leader if self.state is not None else None
        address = self._address_of(leader) if leader is not None else None
        return self._channels.get(address) if address is not None else None

    def written(self) -> None:
        """Send appended records of this leader to followers, and sync them at the same time."""
        self._leading.wake()
        self._sync_wanted.set()

    async def wait_committed(self, offset: int) -> None:
        """Wait until the log is committed up to an offset.

        Raises:
            NotLeader: this replica has stopped. It is unknown whether the records are committed.
        """
        if self._log.committed_end >= offset:
            return
        if self._is_over:
            raise self._leading.not_leader()
        await self._waiting.committed(offset)

    async def round(self) -> None:
        """Wait until a quorum has confirmed, after this call, that this replica leads (rule 11).

        The records that were committed at the call may then be served as the newest.

        Raises:
            NotLeader: it does not lead.
        """
        if self._is_over or self.member.role is not Role.LEADING:
            raise self._leading.not_leader()
        await self._waiting.round()

    def retention_held(self, end: int) -> None:
        """Report that retention has waited long enough for replicas that lack records below `end`;
        0: no replica delays retention.
        """
        self._post(RetentionHeld(end))

    async def hand_over(self, seconds: float, successor: str | None = None) -> bool:
        """Hand over to another replica; returns whether another replica leads.

        Args:
            seconds: limit of the time without appends.
            successor: its id; default: the replica with the most records.
        """
        if self.state is not None and len(self.state.config.in_sync) == 1:
            return False
        self._post(HandOverAsked(successor))
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            self._post(HandOverAbandoned())
            return False
        return True

    async def replicate(
        self, hello: pb.FollowerHello, requests: AsyncIterator[Any]
    ) -> AsyncIterator[pb.LeaderSays]:
        """Serve a follower's stream; see `Leading.replicate`."""
        if self._tasks is None:
            raise NotReady(service="the replica", reason="it is starting")
        async for message in self._leading.replicate(hello, requests, self._spawn):
            yield message

    async def read_copy(self, offset: int, bytes_max: int) -> pb.ReadCopyReply:
        """Return this copy's intact records, for another copy; see `CopyCheck.read`."""
        data = await self.check.read(offset, bytes_max)
        return pb.ReadCopyReply(
            data=data,
            crc=self._crc32(data),
            boundaries=boundaries_to_wire(self._log.boundaries()),
            committed_end=self._log.committed_end,
        )

    def close(self) -> None:
        """End `run` after the events that already wait, without a hand-over."""
        if not self._is_over:
            self._events.put_nowait((None, asyncio.get_running_loop().create_future()))

    # Running

    async def run(self) -> LastAction | None:
        """Run the replica until the member ends it, or `close` is called.

        Returns:
            The member's last action; None after `close`.

        Raises:
            ExceptionGroup: with an OSError if the disk failed: the process must end.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                if self.record.writes.failure:
                    # The log was opened again since, and has no record of the refused write.
                    self._check_writes(probe=True)
                    self._post(WritesChecked(self.record.writes))
                self._post(Started())
                for name, loop in (
                    ("following", self._following.run()),
                    ("syncing", self._sync()),
                    ("repeating", self._repeat()),
                    ("checking writes", self._keep_checking_writes()),
                    ("checking", self.check.run()),
                    ("recording its committed end", self._record_committed_end()),
                ):
                    self._spawn(loop, f"{self._log_name}: {name}")
                await self._handle_events()
                self._end()
                for task in list(self._running):
                    task.cancel()
        finally:
            self._end()
        return self._last

    def _end(self) -> None:
        """Stop handling events, and end all waiting calls."""
        if self._is_over:
            return
        self._is_over = True
        self._over.set()
        self._leading.end_all()
        self.may_append.clear()
        self._update_readiness()
        self._waiting.refuse(self._leading.not_leader())
        while not self._events.empty():
            _, done = self._events.get_nowait()
            finish(done)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        assert self._tasks is not None, "run has begun"
        try:
            task = self._tasks.create_task(work, name=name)
        except RuntimeError:
            # The group is being cancelled.
            work.close()
            raise self._leading.not_leader() from None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _post(self, event: Event) -> "asyncio.Future[None]":
        done = asyncio.get_running_loop().create_future()
        if self._is_over:
            done.set_result(None)
        else:
            self._events.put_nowait((event, done))
        return done

    async def _handle_events(self) -> None:
        """Pass events to the member and carry out its actions, until the last one."""
        while self._last is None:
            event, done = await self._events.get()
            if event is None:
                return
            if isinstance(event, RoundAsked):
                self._waiting.round_started(self.member.round + 1)
            for action in self.member.handle(event):
                await self._carry_out(action)
            finish(done)
            self._update_readiness()

    async def _carry_out(self, action: Action) -> None:
        match action:
            case actions.Persist(facts):
                await asyncio.to_thread(self._file.write, facts)
                if facts.run != self._run:
                    self._run = facts.run
                    self.record.run_raised.set()
            case actions.WriteRecords(offset, data):
                self._write(offset, data)
            case actions.Sync():
                self._sync_wanted.set()
            case actions.CommitUpTo(end):
                if self.member.epoch:
                    # A leader counts its own copy in the quorum.
                    self._file.acknowledged.raise_to(self._log.durable_end)
                self._commit(min(end, self._log.end))
            case actions.Acknowledge(session, ack):
                self._file.acknowledged.raise_to(ack.durable_end)
                self._following.acknowledge(session, ack)
            case actions.SendRound(number):
                self._leading.send_round(number)
            case actions.RoundAgreed(number):
                self._waiting.agreed(number)
            case actions.AllowDeletion(min_offset):
                self._owner.may_delete(min_offset)
            case actions.AllowAppends(allowed):
                if allowed:
                    self.may_append.set()
                else:
                    self.may_append.clear()
            case actions.Reopen() | actions.Remake() | actions.Halt():
                log.warning("log %s: %s", self._log_name, action)
                self._last = action
                if self.record.writes.refusal:
                    self.record.refused_at = asyncio.get_running_loop().time()
            # Rare actions.
            case actions.OpenEpoch(epoch):
                try:
                    self._log.open_epoch(epoch)
                except LogFull as failure:
                    self._update_write_check(WriteCheck(failure=str(failure)))
                self._leading.wake()
            case actions.Truncate(offset):
                log.warning(
                    "log %s: cut at %d, it ended at %d", self._log_name, offset, self._log.end
                )
                self.record.truncated_bytes += max(0, self._log.end - offset)
                self._file.acknowledged.lower(offset)
                self._log.truncate(offset)
                for position in self.member.facts.damaged:
                    if position >= offset:
                        self._post(DamageRepaired(position))
            case actions.Drop(dropped):
                self._log.drop(dict(dropped))
            case actions.NeedGeneration(end):
                self._log.need_generation(end)
            case actions.Connect(leader, epoch):
                self._following.connect(leader, epoch)
            case actions.Disconnect():
                self._following.disconnect()
            case actions.CompareCopies(leader, begin, end):
                self._following.pause()
                self.check.add(begin, end, leader)
            case actions.SayHello(session, hello):
                self._following.say_hello(session, hello)
            case actions.SayWelcome(session, welcome):
                self._leading.say_welcome(session, welcome)
            case actions.EndSession(session, reason, leads):
                self._leading.end_session(session, self._refusal(reason, leads=leads))
            case actions.Established(epoch):
                log.info("log %s: leads epoch %d", self._log_name, epoch)
                self._owner.established(epoch)
            case actions.Alarm(reason):
                log.error("log %s: %s", self._log_name, reason)
            case (
                actions.ReportLog()
                | actions.SuspectLeader()
                | actions.RetractSuspicion()
                | actions.Resign()
                | actions.ConfirmEpoch()
                | actions.ChangeInSync()
                | actions.HandOver()
            ):
                self._ask(action)
            case _:
                raise NotImplementedError(action)

    # Actions and timers.

    def _refusal(self, reason: str, *, leads: bool) -> RockoonError:
        if not leads:
            return self._leading.not_leader()
        log.warning("log %s: a follower is refused: %s", self._log_name, reason)
        return InvalidArgument(reason=reason)

    def _write(self, offset: int, data: bytes) -> None:
        try:
            self._log.write(offset, data)
            self.refusal = ""
        except (ValueError, LogFull) as failure:
            # Nothing was written, so nothing of it will be acknowledged.
            log.error(  # noqa: TRY400
                "log %s: the leader's chunk is refused: %s; reconnecting after a pause",
                *(self._log_name, failure),
            )
            self.refusal = str(failure)
            self._following.pause()
            self._check_writes()
            if isinstance(failure, ValueError) and self.state is not None:
                # The leader's log may be damaged there.
                self.check.add(offset, offset + len(data), self.state.leader)

    def _commit(self, end: int) -> None:
        self._log.commit(end)
        self._leading.wake()
        self._waiting.reached(end)
        self._owner.committed(end)

    def _others(self) -> list[str]:
        """Ids of the other replicas: the leader first, then other voters, then the rest."""
        state = self.state
        if state is None:
            return []
        known = state.config.in_sync.union(state.replicas) - {self.member.replica}
        return sorted(known, key=lambda who: (who != state.leader, who not in state.config.in_sync))

    async def _not_repaired(self) -> None:
        """Hand over to an intact copy, because this leader's log is damaged."""
        if self.member.role is Role.OPENING:
            await self._post(LogStalled())
        now = asyncio.get_running_loop().time()
        if self.member.has_successor and now >= self._hand_over_after:
            self._hand_over_after = now + DAMAGED_PAUSE_SECONDS
            await self.hand_over(DAMAGED_HAND_OVER_SECONDS)

    def _ask_round(self) -> None:
        self._post(RoundAsked())

    def _update_readiness(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.record.set_ready(is_ready=self.is_ready, now=now):
            self._owner.readiness_changed()

    def _ask(self, call: LogStateCall) -> None:
        if self._calls < CALLS_MAX:
            self._calls += 1
            self._spawn(self._asked(call), f"{self._log_name}: {type(call).__name__}")

    async def _asked(self, call: LogStateCall) -> None:
        try:
            state = await self._register.ask(call)
        except RockoonError as reason:
            log.info("log %s: %s had no effect: %s", self._log_name, type(call).__name__, reason)
            if reason.retriable:
                self._call_lost.set()
        else:
            if state is not None:
                self.state_received(state)
        finally:
            self._calls -= 1

    async def _sync(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            if self._log.durable_end < self._log.end:
                stalled = loop.call_later(self._stalled_seconds, self._post, LogStalled())
                try:
                    await self._log.sync()
                finally:
                    stalled.cancel()
            self._post(Synced())

    async def _keep_checking_writes(self) -> None:
        while True:
            await asyncio.sleep(WRITES_CHECK_SECONDS)
            self._check_writes()

    def _check_writes(self, *, probe: bool = False) -> None:
        check = self._log.check_writes(probe=probe)
        now = asyncio.get_running_loop().time()
        is_damped = now < self.record.refused_at + REFUSAL_SECONDS
        if self.epoch and is_damped and not check.failure:
            check = WriteCheck()
        self._update_write_check(check)

    def _update_write_check(self, check: WriteCheck) -> None:
        before, self.record.writes = self.record.writes, check
        if check != before:
            self._post(WritesChecked(check))
        if bool(check.reason) == bool(before.reason):
            return
        if check.reason:
            follows = (
                "it hands over once other copies can commit without it"
                if self.epoch
                else "it acknowledges no new records"
            )
            log.error(
                "log %s: this copy cannot write; %s: %s", self._log_name, follows, check.reason
            )
        else:
            log.warning("log %s: this copy can write again", self._log_name)

    async def _record_committed_end(self) -> None:
        """While this replica leads, record the committed end at the nameservers if it has grown."""
        recorded = 0
        while True:
            await asyncio.sleep(self._record_seconds)
            end, state = self._log.committed_end, self.state
            if self.role is not Role.LEADING or state is None or end <= recorded:
                continue
            if len(state.config.in_sync) == 1:
                # No other replica can be elected.
                continue
            call = actions.RecordCommittedEnd(self.epoch, self.member.facts.version, end)
            try:
                await self._register.ask(call)
            except RockoonError as reason:
                log.info(
                    "log %s: its committed end was not recorded: %s; retrying in %g s",
                    *(self._log_name, reason, self._record_seconds),
                )
            else:
                recorded = end

    async def _repeat(self) -> None:
        """Repeat calls without an effect: periodically, and soon after a call was lost.

        Appends or an election may wait for a lost call: the nameserver or etcd's member may have
        ended together with the leader's process. One repetition covers all lost calls.
        """
        pauses = Backoff(seconds_max=REPEAT_SECONDS)
        while True:
            try:
                async with asyncio.timeout(REPEAT_SECONDS):
                    await self._call_lost.wait()
            except TimeoutError:
                pauses.reset()
            else:
                await asyncio.sleep(pauses.next_seconds())
            self._call_lost.clear()
            # While a disk hangs, no further event joins the queue.
            await self._post(RepeatDue())


class CommitWaits:
    """Futures of callers that wait for a committed end, or for a round: a quorum's confirmation
    that this replica still leads. They complete in order.

    Args:
        ask: starts a round. One runs at a time: later callers share the next one, so the number of
            rounds depends on time and not on callers, and an idle leader starts none.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        # The lowest end first.
        self._ends: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        # Waiting for the next round, and for the running one, whose number is `_number`.
        self._next: list[asyncio.Future[None]] = []
        self._asked: list[asyncio.Future[None]] = []
        self._number = 0

    def committed(self, end: int) -> "asyncio.Future[None]":
        """Return a future that completes when the log is committed up to `end`."""
        reached = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (end, next(self._order), reached))
        return reached

    def reached(self, end: int) -> None:
        """Complete the futures of callers that wait for a committed end up to `end`."""
        while self._ends and self._ends[0][0] <= end:
            finish(heapq.heappop(self._ends)[2])

    def round(self) -> "asyncio.Future[None]":
        """Return a future that completes when a quorum confirms that this replica still leads, by a
        round that starts after this call.
        """
        agreed = asyncio.get_running_loop().create_future()
        self._next.append(agreed)
        if len(self._next) == 1 and not self._asked:
            self._ask()
        return agreed

    def round_started(self, number: int) -> None:
        """Assign the round that starts to all callers that wait for one."""
        self._number = number
        self._asked, self._next = self._asked + self._next, []

    def agreed(self, number: int) -> None:
        """Complete the futures of all rounds up to this number: a quorum has confirmed that this
        replica leads.
        """
        if number < self._number:
            return
        asked, self._asked = self._asked, []
        for each in asked:
            finish(each)
        if self._next:
            self._ask()

    def refuse(self, refusal: RockoonError) -> None:
        """Fail all futures of waiting callers with an error."""
        ends = [reached for _, _, reached in self._ends]
        for each in (*ends, *self._asked, *self._next):
            if not each.done():
                each.set_exception(refusal)


def finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
