"""An offset service with a fake nameserver and a fake broker around it, all in one event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from grpc import aio

from rockoon_core.disk import Disk
from rockoon_core.protocol import LEVEL
from rockoon_offset.server import serve
from rockoon_offset.settings import OffsetSettings
from rockoon_proto.v1 import nameserver_pb2 as ns
from rockoon_proto.v1 import offset_pb2 as pb
from rockoon_proto.v1.offset_pb2_grpc import OffsetServiceStub
from rockoon_runtime.process import Stop
from rockoon_runtime.wire import QUIET_SECONDS
from support.fake_broker import FakeBroker
from support.fake_nameserver import FakeNameserver
from support.waiting import DEADLINE_SECONDS

TOPIC = "orders"
GROUP = "billing"
POLL_SECONDS = 0.005


class Cluster:
    """Objects and calls of a scenario."""

    def __init__(self, directory: Path) -> None:
        self.nameserver = FakeNameserver()
        self.broker = FakeBroker()
        self.store_path = directory / "store"
        self.stub: Any = None
        self.channel: Any = None
        self.address = ""
        self.stop = Stop()
        self._stack = contextlib.AsyncExitStack()
        self._service: contextlib.AsyncExitStack | None = None
        self.more_settings: dict[str, Any] = {}
        self.quiet_seconds = QUIET_SECONDS

    def settings(self, **more: Any) -> OffsetSettings:
        given = {
            "listen": "127.0.0.1:0",
            "nameservers": (self.nameserver.listen,),
            "store_path": self.store_path,
            # Replies are awaited, however long they take on this machine.
            "broker_timeout_seconds": DEADLINE_SECONDS,
            "route_wait_seconds": DEADLINE_SECONDS,
        }
        return OffsetSettings(**{**given, **self.more_settings, **more})

    async def __aenter__(self) -> "Cluster":
        await self._stack.enter_async_context(self.nameserver)
        await self._stack.enter_async_context(self.broker)
        await self.register_broker(self.broker)
        await self.start_service()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_service()
        await self._stack.aclose()

    async def register_broker(self, broker: FakeBroker) -> None:
        node = ns.Node(
            kind=ns.BROKER,
            name=broker.name,
            address=broker.address,
            store_id=broker.name,
            level=LEVEL,
        )
        await self.nameserver.RegisterNode(ns.RegisterNodeRequest(node=node), None)

    async def start_service(self) -> None:
        assert self._service is None
        stack = contextlib.AsyncExitStack()
        self.stop = Stop()
        self.address = await stack.enter_async_context(
            running(self.settings(), self.stop, quiet_seconds=self.quiet_seconds)
        )
        self.channel = await stack.enter_async_context(aio.insecure_channel(self.address))
        self.stub = OffsetServiceStub(self.channel)
        self._service = stack

    async def stop_service(self) -> None:
        if self._service is not None:
            service, self._service = self._service, None
            await service.aclose()

    async def restart_service(self) -> None:
        await self.stop_service()
        await self.start_service()

    async def create_topic(self, topic: str = TOPIC, queues: int = 1, **more: Any) -> None:
        request = ns.CreateTopicRequest(
            config=ns.TopicConfig(name=topic, **more),
            placements=[ns.Placement(broker=self.broker.name, queues=queues)],
        )
        await self.nameserver.CreateTopic(request, None)
        for queue_id in range(queues):
            self.broker.queues.pop((topic, queue_id), None)
            self.broker.queue(topic, queue_id)

    async def add_queues(self, queues: int, topic: str = TOPIC) -> None:
        placement = ns.Placement(broker=self.broker.name, queues=queues)
        request = ns.UpdateTopicRequest(name=topic, add=[placement])
        await self.nameserver.UpdateTopic(request, None)
        known = sum(1 for name, _ in self.broker.queues if name == topic)
        for queue_id in range(known, known + queues):
            self.broker.queue(topic, queue_id)

    async def delete_topic(self, topic: str = TOPIC) -> None:
        await self.nameserver.DeleteTopic(ns.DeleteTopicRequest(name=topic), None)

    async def set_group(self, **config: Any) -> None:
        wanted = ns.GroupConfig(name=GROUP, **config)
        if GROUP in self.nameserver.groups:
            await self.nameserver.UpdateGroup(ns.UpdateGroupRequest(config=wanted), None)
        else:
            await self.nameserver.CreateGroup(ns.CreateGroupRequest(config=wanted), None)

    def more_queues(self, queues: int) -> ns.UpdateTopicRequest:
        """Return a request for a number of queues that already have messages."""
        placement = ns.Placement(broker=self.broker.name, queues=queues)
        return ns.UpdateTopicRequest(name=TOPIC, add=[placement])

    def deletion_of_group(self) -> ns.DeleteGroupRequest:
        return ns.DeleteGroupRequest(name=GROUP)

    async def resolve(
        self,
        *queue_ids: int,
        member: str = "m1",
        mode: pb.ConsumeMode = pb.CLUSTERING,
        group: str = GROUP,
        topic: str = TOPIC,
        policy: Any = None,
        broker: str = "",
    ) -> list[pb.Start]:
        reply = await self.stub.Resolve(
            pb.ResolveRequest(
                group=group,
                member_id=member,
                mode=mode,
                queues=[self.ref(number, topic, broker) for number in queue_ids or (0,)],
                policy=policy,
                route_revision=self.nameserver.revision,
            )
        )
        return list(reply.starts)

    async def stub_resolve_both(self) -> list[pb.Start]:
        """Resolve queue 0 of broker-b and of this broker in one call."""
        queues = [self.ref(broker="broker-b"), self.ref()]
        request = pb.ResolveRequest(
            group=GROUP, queues=queues, route_revision=self.nameserver.revision
        )
        return list((await self.stub.Resolve(request)).starts)

    async def start_of(self, queue_id: int = 0, **more: Any) -> pb.Start:
        (start,) = await self.resolve(queue_id, **more)
        return start

    async def commit(
        self,
        offset: int,
        epoch: int,
        queue_id: int = 0,
        *,
        member: str = "m1",
        force: bool = False,
        topic: str = TOPIC,
    ) -> pb.CommitResult:
        entry = pb.CommitEntry(queue=self.ref(queue_id, topic), offset=offset, epoch=epoch)
        reply = await self.stub.Commit(
            pb.CommitRequest(group=GROUP, member_id=member, entries=[entry], force=force)
        )
        return reply.results[0]  # type: ignore[no-any-return]

    async def progress(self, group: str = GROUP) -> list[pb.Progress]:
        reply = await self.stub.ListProgress(pb.ListProgressRequest(group=group))
        return list(reply.progress)

    def ref(self, queue_id: int = 0, topic: str = TOPIC, broker: str = "") -> pb.QueueRef:
        return pb.QueueRef(topic=topic, broker=broker or self.broker.name, queue_id=queue_id)

    async def until(self, condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> None:
        """Wait for an effect of another task; `condition` may return an awaitable."""
        async with asyncio.timeout(seconds):
            while True:
                found = condition()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return
                await asyncio.sleep(POLL_SECONDS)

    async def until_revision(self) -> None:
        """Wait until the service has the current routes: an unknown topic is then unknown."""
        reply = await self.stub.Resolve(
            pb.ResolveRequest(
                group=GROUP,
                queues=[self.ref(topic="no-such-topic")],
                route_revision=self.nameserver.revision,
            )
        )
        assert "does not exist" in reply.starts[0].error.message


@contextlib.asynccontextmanager
async def running(
    settings: OffsetSettings,
    stop: Stop,
    disk: Disk | None = None,
    quiet_seconds: float = QUIET_SECONDS,
) -> AsyncIterator[str]:
    """Run a service in this loop; yield its address when it is ready.

    Exceptions of `serve` are raised, and so is the reason if it stopped by itself before it was
    ready.
    """
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def life() -> None:
        try:
            await serve(
                settings,
                stop,
                disk=disk,
                announce=lambda *ready: address.set_result(ready[2]),
                quiet_seconds=quiet_seconds,
            )
        finally:
            if not address.done() and stop.fatal is not None:
                address.set_exception(stop.fatal)
            address.cancel()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(life(), name="offset service")
        yield await address
        stop.request("the scenario is over")
