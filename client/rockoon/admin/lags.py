"""Lag of all consumer groups."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from rockoon.admin import reads
from rockoon.admin.descriptions import GroupSummary
from rockoon.admin.offset_calls import ask_offset_service
from rockoon.errors import GroupNotFound, RockoonError
from rockoon_proto.v1.offset_pb2 import GroupMembers, LagReply, LagRequest, ListMembersRequest

if TYPE_CHECKING:
    from rockoon.net.connection import Connection

# Bounded because the offset service asks the brokers for each group.
GROUPS_AT_ONCE_MAX = 16


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group with its lag and its readers.

    Attributes:
        group: configuration and subscribed topics.
        lag: the lag; None if the offset service refused the call.
        readers: live members, and filters reported by receivers lately.
        error: the refusal, for example too many queues for one reply.
    """

    group: GroupSummary
    lag: LagReply | None
    readers: GroupMembers
    error: RockoonError | None = None

    @property
    def name(self) -> str:
        return str(self.group.group.config.name)


async def all_lags(connection: "Connection") -> AsyncGenerator[GroupLag]:
    """Yield the lag of each group; see `Admin.lags`."""
    groups = reads.group_summaries(await reads.ask_groups(connection))
    async for each in answers(groups, partial(ask_lag, connection)):
        yield each


async def answers(
    groups: Iterable[GroupSummary],
    ask: Callable[[GroupSummary], Coroutine[None, None, GroupLag | None]],
) -> AsyncGenerator[GroupLag]:
    """Call `ask` for a few groups at a time; yield the results that are not None."""
    left = iter(groups)
    while some := list(islice(left, GROUPS_AT_ONCE_MAX)):
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(ask(group)) for group in some]
        except BaseExceptionGroup as failures:
            # The service does not answer: all failures have the same cause.
            raise failures.exceptions[0] from None
        for task in asked:
            if (found := task.result()) is not None:
                yield found


async def ask_lag(connection: "Connection", group: GroupSummary) -> GroupLag | None:
    """Return the lag of a group; None if the group does not exist any more.

    Raises:
        RockoonError: a retriable error of the service, not of the group.
    """
    name = group.group.config.name
    readers = GroupMembers(group=name)
    try:
        found = await ask_offset_service(connection, "ListMembers", ListMembersRequest(group=name))
        readers = next((each for each in found.groups if each.group == name), readers)
        lag = await ask_offset_service(connection, "Lag", LagRequest(group=name))
    except GroupNotFound:
        return None
    except RockoonError as error:
        if error.retriable:
            raise
        return GroupLag(group, None, readers, error)
    return GroupLag(group, lag, readers)
