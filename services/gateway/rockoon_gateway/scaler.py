"""KEDA's external scaler: the pending work of a group, from its lag in the offset service.

The metric counts messages that exist and are not settled. Messages in flight count, so that no
consumer is removed while it handles one. Messages that were acknowledged after an older unsettled
one do not count, nor do messages that retention deleted.
A queue with messages that the group has never read counts as one: otherwise a group scaled to zero
would never start. If a broker does not report, the call fails instead of returning zero, and KEDA
uses its fallback. Errors are gRPC statuses, as KEDA expects, unlike those of RocketMQ's protocol.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from rockoon.admin.admin import Admin
from rockoon.errors import BrokerUnavailable
from rockoon_core.errors import InvalidArgument
from rockoon_proto.keda import externalscaler_pb2 as keda
from rockoon_proto.keda.externalscaler_pb2_grpc import ExternalScalerServicer
from rockoon_proto.v1.offset_pb2 import LagReply, QueueLag

LAG_THRESHOLD = 100
ACTIVATION_LAG_THRESHOLD = 0
POLL_SECONDS = 5
POLL_SECONDS_MAX = 300
NUMBER_MAX = 1 << 53


@dataclass(frozen=True, slots=True)
class Trigger:
    """Parameters of a KEDA trigger, from its metadata.

    triggers:
      - type: external-push
        metadata:
          scalerAddress: rockoon-gateway.rockoon.svc:8082
          group: billing
          topic: orders
          lagThreshold: "100"
          activationLagThreshold: "0"
          pollSeconds: "5"
    """

    group: str
    topic: str
    """Topic whose lag is counted; empty: all topics that the group reads."""
    lag_threshold: int
    """Lag in messages for which KEDA runs one replica."""
    activation_lag_threshold: int
    """Lag in messages above which the group is active."""
    poll_seconds: int
    """Seconds between reads of the lag for a push trigger."""

    @property
    def metric_name(self) -> str:
        """Name of the metric, unique among different triggers of a ScaledObject.

        Kubernetes refuses a percent sign in the name of a metric. A dot replaces it: no topic or
        group has one.
        """
        parts = (
            ["rockoon-lag", self.group, self.topic] if self.topic else ["rockoon-lag", self.group]
        )
        return "-".join(parts).replace("%", ".")

    @classmethod
    def parse(cls, metadata: Mapping[str, str]) -> "Trigger":
        """Parse a trigger's metadata; keys that KEDA adds are ignored. Raises InvalidArgument: the
        group is missing, or a number is invalid."""
        group = metadata.get("group", "").strip()
        if not group:
            raise InvalidArgument(reason="the trigger's metadata names no group")
        return cls(
            group=group,
            topic=metadata.get("topic", "").strip(),
            lag_threshold=_number(metadata, "lagThreshold", LAG_THRESHOLD, 1, NUMBER_MAX),
            activation_lag_threshold=_number(
                metadata, "activationLagThreshold", ACTIVATION_LAG_THRESHOLD, 0, NUMBER_MAX
            ),
            poll_seconds=_number(metadata, "pollSeconds", POLL_SECONDS, 1, POLL_SECONDS_MAX),
        )


def _number(metadata: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = metadata.get(name, "").strip()
    if not text:
        return default
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(high))
    if not is_number or not low <= int(text) <= high:
        raise InvalidArgument(reason=f"{name} is {text!r}, not a number from {low} to {high}")
    return int(text)


class Scaler(ExternalScalerServicer):
    """gRPC servicer of KEDA's ExternalScaler, from the lag of groups."""

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
    """Raise BrokerUnavailable if the lag of a queue is not known."""
    for each in lag.queues:
        if not each.known:
            raise BrokerUnavailable(
                f"the lag of {each.queue.topic} is not known: {each.unknown_because}",
                broker=each.queue.broker,
            )
