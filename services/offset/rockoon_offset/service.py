"""gRPC servicer of OffsetService: converts requests, calls the components, converts results."""
# ruff: noqa: ARG002 - gRPC calls every method with a request and a context

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any

from rockoon_core.errors import InvalidArgument, RockoonError, RouteNotReached
from rockoon_core.message_queue import MessageQueue, queue_from_wire, queue_to_wire
from rockoon_core.start_position import NewQueueRule, policy_from_wire
from rockoon_format.names import group_resource, topic_need, topic_resource
from rockoon_offset.groups import Groups
from rockoon_offset.in_flight.known_receivers import GroupReceivers
from rockoon_offset.journal import frames
from rockoon_offset.members.membership import ClientSdk
from rockoon_offset.members.watch import GroupWatch
from rockoon_offset.progress.commits import Commits, Release
from rockoon_offset.progress.importer import Importer
from rockoon_offset.progress.lag import Lags
from rockoon_offset.progress.ledger import OffsetCommit
from rockoon_offset.progress.progress_files import (
    from_json_lines,
    from_rocketmq,
    to_json_lines,
    to_rocketmq,
)
from rockoon_offset.progress.progress_store import ProgressStore
from rockoon_offset.progress.readers import group_of, reader_of
from rockoon_offset.progress.records import Progress, ResetApplied, encode
from rockoon_offset.progress.reset_plans import Plan, ResetOrder, ResetPlans
from rockoon_offset.progress.unread import OffsetRange, unread_in
from rockoon_offset.request_checks import (
    bounded,
    bounded_names,
    check_group,
    check_heartbeat,
    check_member,
    check_operator,
    check_reply_bytes,
    check_reply_entries,
    check_topic,
    require,
)
from rockoon_offset.routes import FollowedRoutes
from rockoon_offset.settings import OffsetSettings
from rockoon_offset.start.resolver import Resolver
from rockoon_offset.wire import (
    lag_to_wire,
    lock_to_wire,
    member_from_wire,
    member_to_wire,
    owner_to_wire,
    positions_from_wire,
    progress_to_wire,
    receiver_to_wire,
    step_to_wire,
    target_from_wire,
    unread_to_wire,
)
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceServicer
from rockoon_runtime.access.callers import current_caller, sees

# A broker whose call is refused asks again in its next retention pass.
UNREAD_WAIT_SECONDS_MAX = 1.0


class OffsetService(OffsetServiceServicer):
    """gRPC servicer of OffsetService (offset.proto), for members, other readers and operators."""

    def __init__(
        self,
        settings: OffsetSettings,
        store: ProgressStore,
        groups: Groups,
        watch: GroupWatch,
        resolver: Resolver,
        commits: Commits,
        plans: ResetPlans,
        lags: Lags,
        importer: Importer,
        routes: FollowedRoutes,
        receivers: GroupReceivers,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._store = store
        self._groups = groups
        self._watch = watch
        self._resolver = resolver
        self._commits = commits
        self._plans = plans
        self._lags = lags
        self._importer = importer
        self._receivers = receivers
        self._now_ms = now_ms

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply:
        check_heartbeat(request)
        joined = self._groups.heartbeat(
            request.group,
            member_from_wire(request, context.peer()),
            positions_from_wire(request.positions),
            ClientSdk(request.language, request.version),
        )
        if joined or self._store.is_stalled:
            await self._store.durable()
        else:
            await self._store.wait_leadership_confirmed()
        reply = pb.HeartbeatReply(
            membership_version=self._groups.membership.version(request.group),
            members=self._members(request.group),
            heartbeat_seconds=self._settings.heartbeat_seconds,
            lease_seconds=self._settings.lease_seconds,
            handover_seconds_max=self._settings.handover_seconds_max,
            consume_disabled=self._routes.table.is_paused(request.group),
        )
        if request.wants_owners:
            self._add_owners(request, reply)
        return reply

    def _add_owners(self, request: pb.HeartbeatRequest, reply: pb.HeartbeatReply) -> None:
        owners = self._groups.owners(request.group).owners
        reply.owners_known = owners is not None
        if owners is not None and request.owners_version != reply.membership_version:
            reply.owners.extend(owner_to_wire(queue, owners[queue]) for queue in sorted(owners))

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveReply:
        check_group(request.group)
        self._groups.leave(request.group, request.member_id, request.instance)
        return pb.LeaveReply()

    async def WatchGroup(
        self,
        request: pb.WatchGroupRequest,
        context: Any,
    ) -> AsyncIterator[pb.GroupEvent]:
        check_group(request.group)
        bounded_names(member_id=request.member_id)
        async for event in self._watch.events(
            request.group, request.member_id, request.group_incarnation
        ):
            yield pb.GroupEvent(
                membership_version=self._groups.membership.version(request.group),
                members=self._members(request.group),
                reset_queues=map(queue_to_wire, sorted(event.reset_queues)),
                routes_changed=event.routes_changed,
                deleted=event.deleted,
                released_queues=map(queue_to_wire, sorted(event.released_queues)),
                consume_disabled=self._routes.table.is_paused(request.group),
            )

    async def Query(self, request: pb.QueryRequest, context: Any) -> pb.QueryReply:
        self._routes.require()
        check_group(request.group)
        if request.member:
            check_member(request.member)
        self._check_topic(request.group, request.queue.topic)
        found = await self._resolver.query(
            request.group, queue_from_wire(request.queue), request.member
        )
        reply = pb.QueryReply(
            found=found.decision is not None,
            explanation=found.explanation,
            rule=found.rule.value,  # type: ignore[arg-type]
        )
        if found.decision is not None:
            reply.offset = found.decision.offset
            reply.reason = found.decision.reason.value  # type: ignore[assignment]
        return reply

    async def Resolve(self, request: pb.ResolveRequest, context: Any) -> pb.ResolveReply:
        self._routes.require()
        check_group(request.group)
        bounded_names(member_id=request.member_id)
        bounded(request.queues)
        own = request.mode == pb.BROADCASTING
        if own:
            check_member(request.member_id)
        queues = [queue_from_wire(queue) for queue in request.queues]
        answers = await self._resolver.resolve(
            request.group,
            request.member_id,
            list(dict.fromkeys(queues)),
            policy_from_wire(request.policy),
            request.route_revision,
            own=own,
        )
        reply = pb.ResolveReply()
        for asked, queue in zip(request.queues, queues, strict=True):
            answer = answers[queue]
            if isinstance(answer, RockoonError):
                reply.starts.add(queue=asked, error=answer.to_wire())
                continue
            reply.starts.add(
                queue=asked,
                offset=answer.decision.offset,
                reason=answer.decision.reason.value,
                epoch=answer.epoch,
                explanation=answer.decision.explanation,
                gap=answer.decision.gap,
            )
        return reply

    async def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitReply:
        check_group(request.group)
        bounded_names(member_id=request.member_id)
        bounded(request.entries)
        bounded(request.release)
        if request.force:
            for topic in {entry.queue.topic for entry in request.entries}:
                self._check_topic(request.group, topic)
        reader = request.group
        if request.mode == pb.BROADCASTING:
            check_member(request.member_id)
            reader = reader_of(request.group, request.member_id)
        outcomes = await self._commits.commit(
            [
                OffsetCommit(
                    reader,
                    queue_from_wire(entry.queue),
                    entry.offset,
                    entry.epoch,
                    request.member_id,
                    entry.metadata,
                    request.force,
                )
                for entry in request.entries
            ],
            [
                Release(reader, queue_from_wire(queue), request.member_id)
                for queue in request.release
            ],
        )
        reply = pb.CommitReply(consume_disabled=self._routes.table.is_paused(request.group))
        for entry, (offset, error) in zip(request.entries, outcomes, strict=True):
            result = reply.results.add(queue=entry.queue, offset=offset)
            if error is not None:
                result.error.CopyFrom(error.to_wire())
        return reply

    async def PlanReset(self, request: pb.PlanResetRequest, context: Any) -> pb.ResetPlan:
        return self._plan_to_wire(await self._plans.plan(self._wanted(request)))

    async def Reset(self, request: pb.ResetRequest, context: Any) -> pb.ResetPlan:
        check_operator(request.operator)
        bounded_names(reset_id=request.reset_id)
        wanted = self._wanted(request.wanted)
        applied = await self._plans.reset(wanted, request.reset_id, request.operator)
        return self._reset_to_wire(applied)

    def _wanted(self, request: pb.PlanResetRequest) -> ResetOrder:
        self._routes.require()
        check_group(request.group)
        check_topic(request.topic)
        bounded(request.queues)
        bounded(request.target.offsets.offsets)
        self._check_topic(request.group, request.topic)
        if request.member:
            check_member(request.member)
        if request.target.WhichOneof("to") == "group":
            check_group(request.target.group)
        return ResetOrder(
            request.group,
            request.topic,
            [queue_from_wire(queue) for queue in request.queues],
            target_from_wire(request.target),
            request.member,
        )

    async def ApplyReset(self, request: pb.ApplyResetRequest, context: Any) -> pb.ResetPlan:
        self._routes.require()
        check_operator(request.operator)
        self._check_may_reset(request.reset_id)
        return self._reset_to_wire(await self._plans.apply(request.reset_id, request.operator))

    async def UndoReset(self, request: pb.UndoResetRequest, context: Any) -> pb.ResetPlan:
        self._routes.require()
        check_operator(request.operator)
        self._check_may_reset(request.reset_id)
        return self._reset_to_wire(await self._plans.undo(request.reset_id, request.operator))

    async def ListProgress(
        self,
        request: pb.ListProgressRequest,
        context: Any,
    ) -> pb.ListProgressReply:
        progress = self._bounded_progress("a group or a topic", request.group, topic=request.topic)
        await self._store.durable()
        reply = pb.ListProgressReply(
            progress=map(progress_to_wire, progress), as_of_ms=self._now_ms()
        )
        check_reply_bytes(reply.ByteSize(), "a group or a topic")
        return reply

    async def Lag(self, request: pb.LagRequest, context: Any) -> pb.LagReply:
        self._routes.require()
        check_group(request.group)
        if request.topic:
            self._check_topic(request.group, request.topic)
        lags = await self._lags.lags(request.group, request.topic)
        return pb.LagReply(
            queues=map(lag_to_wire, lags),
            total_lag=sum(lag.lag or 0 for lag in lags),
            complete=not any(lag.unknown_because for lag in lags),
            as_of_ms=self._now_ms(),
            disks=self._lags.disks(lags),
        )

    async def Unread(self, request: pb.UnreadRequest, context: Any) -> pb.UnreadReply:
        self._routes.require()
        require(broker=request.broker)
        bounded(request.spans)
        bounded(request.waited_groups)
        wait_seconds = min(self._settings.route_wait_seconds, UNREAD_WAIT_SECONDS_MAX)
        if not await self._routes.wait_revision(request.route_revision, wait_seconds):
            revision = self._routes.table.revision
            raise RouteNotReached(wanted=request.route_revision, revision=revision)
        ranges = {
            MessageQueue(each.topic, request.broker, each.queue_id): OffsetRange(
                each.begin, each.end
            )
            for each in request.spans
        }
        found = await unread_in(
            ranges,
            self._store.ledger,
            self._routes.table,
            frozenset(request.waited_groups),
            NewQueueRule[self._settings.new_queue_rule.upper()],
        )
        await self._store.durable()
        return pb.UnreadReply(
            unread=map(unread_to_wire, found.named),
            messages=found.messages,
            is_waited_for=found.is_waited_for,
        )

    async def ListMembers(
        self,
        request: pb.ListMembersRequest,
        context: Any,
    ) -> pb.ListMembersReply:
        names = [request.group] if request.group else self._groups.membership.groups()
        names = [name for name in names if sees(group_resource(name))]
        return pb.ListMembersReply(
            clock_ms=self._now_ms(),
            problems=self._problems(),
            groups=[
                pb.GroupMembers(
                    group=name,
                    membership_version=self._groups.membership.version(name),
                    members=self._members(name, with_sdk=True),
                    # Receivers of all groups could be too many for one reply.
                    receivers=map(receiver_to_wire, self._receivers.filters.of_receivers(name))
                    if request.group
                    else (),
                    filter_conflicts=self._receivers.filters.conflicts(name)
                    if request.group
                    else (),
                    receiver_count=self._receivers.count(name) if request.group else 0,
                )
                for name in names
            ],
        )

    async def ListLocks(self, request: pb.ListLocksRequest, context: Any) -> pb.ListLocksReply:
        check_group(request.group)
        locks = self._groups.locks(request.group)
        check_reply_entries(len(locks), self._settings.progress_entries_max, "a smaller group")
        return pb.ListLocksReply(locks=map(lock_to_wire, locks), as_of_ms=self._now_ms())

    async def Export(self, request: pb.ExportRequest, context: Any) -> pb.ExportReply:
        progress = self._bounded_progress(
            "a group or a broker", request.group, broker=request.broker
        )
        await self._store.durable()
        if request.format == pb.ROCKETMQ:
            require(broker=request.broker)
            content = await asyncio.to_thread(
                to_rocketmq, progress, request.broker, self._store.changes, self._now_ms()
            )
        elif request.format == pb.JSON_LINES:
            content = await asyncio.to_thread(to_json_lines, progress)
        else:
            raise InvalidArgument(reason="an export needs a format")
        check_reply_bytes(len(content), "a group or a broker")
        return pb.ExportReply(content=content, entries=len(progress))

    async def ReadState(
        self, request: pb.ReadStateRequest, context: Any
    ) -> AsyncIterator[pb.ReadStateReply]:
        # Captured before the wait: after it, the captured state is durable.
        payloads = frames.state_payloads(map(encode, self._store.ledger.snapshot()))
        await self._store.durable()
        await self._store.wait_leadership_confirmed()
        for payload in payloads:
            yield pb.ReadStateReply(records=payload)

    async def Import(self, request: pb.ImportRequest, context: Any) -> pb.ImportReply:
        self._routes.require()
        check_operator(request.operator)
        # In a thread: parsing a file of megabytes would block other calls.
        if request.format == pb.ROCKETMQ:
            bounded_names(broker=request.broker)
            entries = await asyncio.to_thread(from_rocketmq, request.content, request.broker)
        elif request.format == pb.JSON_LINES:
            entries = await asyncio.to_thread(from_json_lines, request.content)
        else:
            raise InvalidArgument(reason="an import needs a format")
        imported = await self._importer.import_entries(
            entries, request.operator, dry_run=request.dry_run, overwrite=request.overwrite
        )
        return pb.ImportReply(
            imported=(
                step_to_wire(step, creates_queue=creates_queue)
                for step, creates_queue in imported.steps
            ),
            imported_count=imported.steps_count,
            skipped=imported.skipped,
            skipped_count=imported.skipped_count,
        )

    def _problems(self) -> Iterator[str]:
        """Yield sentences about conditions that make valid calls fail."""
        try:
            self._routes.require()
        except RockoonError as refusal:
            yield f"no reader can start: {refusal}"
        if shortage := self._store.journal_counts().shortage:
            yield f"progress is not stored: {shortage}"

    def _bounded_progress(
        self, narrower: str, group: str, *, topic: str = "", broker: str = ""
    ) -> list[Progress]:
        """Return the visible progress. Raises InvalidArgument if it is too much for a reply."""
        found = self._store.ledger.each_progress(group, topic, broker)
        if current_caller() is not None and not group:
            found = (each for each in found if sees(group_resource(group_of(each.group))))
        progress = list(islice(found, self._settings.progress_entries_max + 1))
        check_reply_entries(len(progress), self._settings.progress_entries_max, narrower)
        return progress

    def _check_may_reset(self, reset_id: str) -> None:
        """Refuse a reset that the caller may not make. Raises ResetNotFound, NotPermitted."""
        caller = current_caller()
        if caller is not None:
            caller.require("write", group_resource(self._plans.group_of(reset_id)))

    def _check_topic(self, group: str, topic: str) -> None:
        """Refuse a topic that the group does not read and the caller may not see. Raises
        NotPermitted.

        Otherwise a caller with access to one group could learn which topics exist.
        """
        caller = current_caller()
        if (
            caller is not None
            and not caller.may("see", topic_resource(topic))
            and topic not in self._lags.topics_of(group)
        ):
            caller.require(*topic_need("see", topic))

    def _members(self, group: str, *, with_sdk: bool = False) -> list[pb.Member]:
        leases = self._groups.membership.leases(group)
        return [member_to_wire(lease, with_sdk=with_sdk) for lease in leases]

    def _plan_to_wire(self, plan: Plan) -> pb.ResetPlan:
        return pb.ResetPlan(
            reset_id=plan.reset_id,
            group=plan.group,
            topic=plan.topic,
            steps=map(step_to_wire, plan.steps),
            live_members=len(self._groups.membership.leases(plan.group)),
            as_of_ms=plan.as_of_ms,
        )

    def _reset_to_wire(self, reset: ResetApplied) -> pb.ResetPlan:
        return pb.ResetPlan(
            reset_id=reset.reset_id,
            group=reset.group,
            topic=reset.topic,
            steps=map(step_to_wire, reset.steps),
            live_members=len(self._groups.membership.leases(reset.group)),
            applied=True,
            undone=reset.undone,
            as_of_ms=reset.applied_at_ms,
        )
