"""KEDA's external scaler: the pending work of a group, from its lag in the offset service.

The metric counts messages that exist and are not settled. Messages in flight count, so that no
consumer is removed while it handles one. Messages that were acknowledged after an older unsettled
one do not count, nor do messages that retention deleted.
A queue with messages that the group has never read counts as one: otherwise a group scaled to zero
would never start. If a broker does not report, the call fails instead of returning zero, and KEDA
uses its fallback. Errors are gRPC statuses, as KEDA expects, unlike those of RocketMQ's protocol.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rockoon.admin.admin import Admin
from rockoon.errors import BrokerUnavailable
from rockoon_gateway.scaling.trigger import Trigger
from rockoon_proto.keda import externalscaler_pb2 as keda
from rockoon_proto.keda.externalscaler_pb2_grpc import ExternalScalerServicer
from rockoon_proto.v1.offset_pb2 import LagReply, QueueLag


class Scaler(ExternalScalerServicer):
    """The servicer.

    Args:
        admin: of the cluster.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def IsActive(self, request: keda.ScaledObjectRef, _context: Any) -> keda.IsActiveResponse:
        trigger = Trigger.parse(request.scalerMetadata)
        return keda.IsActiveResponse(result=await self._is_active(trigger))

    async def StreamIsActive(
        self, request: keda.ScaledObjectRef, _context: Any
    ) -> AsyncIterator[keda.IsActiveResponse]:
        trigger = Trigger.parse(request.scalerMetadata)
        told: bool | None = None
        while True:
            is_active = await self._is_active(trigger)
            if is_active != told:
                told = is_active
                yield keda.IsActiveResponse(result=is_active)
            await asyncio.sleep(trigger.poll_seconds)

    async def GetMetricSpec(
        self, request: keda.ScaledObjectRef, _context: Any
    ) -> keda.GetMetricSpecResponse:
        trigger = Trigger.parse(request.scalerMetadata)
        spec = keda.MetricSpec(
            metricName=trigger.metric_name,
            targetSize=trigger.lag_threshold,
            targetSizeFloat=trigger.lag_threshold,
        )
        return keda.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(
        self, request: keda.GetMetricsRequest, _context: Any
    ) -> keda.GetMetricsResponse:
        trigger = Trigger.parse(request.scaledObjectRef.scalerMetadata)
        lag = await self._admin.lag(trigger.group, trigger.topic)
        require_complete(lag)
        value = keda.MetricValue(
            metricName=request.metricName or trigger.metric_name,
            metricValue=waiting(lag),
            metricValueFloat=waiting(lag),
        )
        return keda.GetMetricsResponse(metricValues=[value])

    async def _is_active(self, trigger: Trigger) -> bool:
        lag = await self._admin.lag(trigger.group, trigger.topic)
        if waiting(lag) > trigger.activation_lag_threshold:
            # Enough lag is known, even if some queues are not.
            return True
        require_complete(lag)
        return False


def waiting(lag: LagReply) -> int:
    """Count the messages of the queues whose lag is known; see the module."""
    return sum(map(waiting_in, lag.queues))


def waiting_in(queue: QueueLag) -> int:
    """Count the messages of one queue; 0 if its lag is not known."""
    if not queue.known:
        return 0
    if not queue.HasField("lag"):
        return int(queue.max_offset > queue.min_offset)
    return max(0, queue.lag - queue.lost - queue.settled_above)


def require_complete(lag: LagReply) -> None:
    """Raises BrokerUnavailable if the lag of a queue is not known."""
    for each in lag.queues:
        if not each.known:
            raise BrokerUnavailable(
                f"the lag of {each.queue.topic} is not known: {each.unknown_because}",
                broker=each.queue.broker,
            )
