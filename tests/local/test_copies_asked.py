"""Calls to copies while the nameservers still list the killed process."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rockoon
from rockoon.admin.logs import LogDescription
from rockoon.errors import InvalidArgument
from rockoon.local.listing import ask_for
from rockoon_nameserver.log_membership import set_copies
from rockoon_proto.v1.logs_pb2 import Log, LogState

LOG = "broker-a"


class ListedLogs:
    """Lists of one log by nameservers, with replies by their own rules.

    Args:
        looks: number of calls after which the killed process is not listed any more, and the log is
            that of the new process.
    """

    def __init__(self, looks: int) -> None:
        self._state = LogState(log=LOG, epoch=1, copies=1)
        self._looks = looks

    async def describe(self, log: str) -> LogDescription:
        assert log == LOG
        if not self._looks:
            self._state.copies = 3
        self._looks -= 1
        return LogDescription.from_wire(Log(state=self._state))

    async def set_copies(self, log: str, copies: int) -> None:
        assert log == LOG
        set_copies(self._state, copies, "")


def connected(logs: ListedLogs) -> rockoon.Cluster:
    return cast(Any, SimpleNamespace(admin=SimpleNamespace(logs=logs)))


async def test_a_refusal_is_asked_again_until_the_new_processes_are_listed() -> None:
    await ask_for(connected(ListedLogs(looks=3)), [LOG], 3, time.monotonic() + 60)


async def test_a_refusal_at_the_deadline_is_raised() -> None:
    with pytest.raises(InvalidArgument, match="started as its only copy"):
        await ask_for(connected(ListedLogs(looks=3)), [LOG], 3, time.monotonic() - 1)
