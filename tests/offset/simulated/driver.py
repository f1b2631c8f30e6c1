"""The running calls to a simulated service, advanced by hand, and its starts and crashes."""

import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from offset.simulated.account import Call
from offset.simulated.service import Service
from offset.simulated.witness import Witness
from offset.simulated.world import SECOND_NS, World

from rockoon_core.errors import RockoonError
from rockoon_core.message_queue import MessageQueue
from rockoon_core.start_position import QueueState
from rockoon_proto.v1 import nameserver_pb2 as ns

BROKERS = ("broker-a", "broker-b", "broker-c")
TOPICS = ("orders", "payments", "%RETRY%first")
CALLS_MAX = 40
KEPT_MAX = 50
# Of the brokers of one life.
SLOW_SHARES = (0.01, 0.1, 0.3)

GROUPS = {
    "first": ns.GroupConfig(
        name="first", start_policy=ns.StartPolicy(consume_from=ns.CONSUME_FROM_FIRST)
    ),
    "last": ns.GroupConfig(name="last", above_max=ns.OUT_OF_RANGE_FIRST),
    "timestamp": ns.GroupConfig(
        name="timestamp",
        start_policy=ns.StartPolicy(
            consume_from=ns.CONSUME_FROM_TIMESTAMP, timestamp_ms=1_700_000_100_000
        ),
        below_min=ns.OUT_OF_RANGE_LAST,
    ),
    "classic": ns.GroupConfig(name="classic", new_queue_rule=ns.CLASSIC),
    "failing": ns.GroupConfig(
        name="failing", below_min=ns.OUT_OF_RANGE_FAIL, above_max=ns.OUT_OF_RANGE_FAIL
    ),
}


class Driver:
    """A service and its running calls.

    Args:
        seed: of all random choices.
        directory: for the journal's files; empty.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.operations = 0
        self.world = World(self.chance, slow_share=self.chance.choice(SLOW_SHARES))
        self.witness = Witness(self.world)
        self._directory = directory
        self._calls: list[Call] = []
        for topic in TOPICS:
            self.world.add_queues(topic, BROKERS[0], 3)
        for config in GROUPS.values():
            self.world.set_group(config)
        self.service = self._start_service(lag=0)

    def _step(self, call: Call) -> None:
        self.witness.cause = call
        assert call.coroutine is not None
        try:
            call.coroutine.send(None)
        except StopIteration as end:
            self._calls.remove(call)
            call.on_done(end.value)
        except RockoonError:
            self._calls.remove(call)
            call.on_done(None)
        finally:
            self.witness.cause = None

    def _finish_calls(self) -> None:
        while self._calls:
            self.service.store.sync()
            for call in list(self._calls):
                self._step(call)
            # Some wait for routes, for a bounded time.
            self.world.advance(SECOND_NS // 20)

    def _call(
        self, call: Call, coroutine: Coroutine[Any, Any, Any], on_done: Callable[..., None]
    ) -> None:
        call.coroutine, call.on_done = coroutine, on_done
        self._calls.append(call)
        self._step(call)

    def _start_service(self, lag: int) -> Service:
        views = self.world.history
        self.witness.told_view = views[max(0, len(views) - 1 - lag)]
        service = Service(
            self.world,
            self._directory,
            self.witness.told_view,
            self._written,
            self.witness.on_durable,
            self._told,
            self.witness.asks,
            self.witness.group_deleted,
            self.witness.recovered,
        )
        return service

    def _written(self, records: list[Any]) -> None:
        self.witness.on_written(records)

    def _told(self, queue: MessageQueue, state: QueueState) -> None:
        self.witness.told(queue, state)

    def _do_crash(self) -> None:
        self.service.store.crash(self.chance)
        for call in self._calls:
            assert call.coroutine is not None
            call.coroutine.close()
        calls, self._calls = self._calls, []
        for call in calls:
            call.on_done(None)
        self.witness.crashed()
        # The first nameserver that it asks may be behind the service's former routes.
        lag = 0 if self.chance.random() < 0.5 else int(self.chance.expovariate(0.1))
        self.service = self._start_service(lag)
