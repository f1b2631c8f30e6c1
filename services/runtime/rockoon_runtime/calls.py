"""Call times by method and answer; RocketMQ's histogram of the same name.

Filled by the server with every call that has one request and one answer (streams have no latency),
and by who takes requests out of a stream for each of these.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, Times, histogram

SUCCESS = "success"

# RemotingMetricsManager of RocketMQ 5 has these bounds. One of a millisecond would say nothing of
# most calls here, so there are two below it.
BOUNDS_MS = (0.3, 0.6, 1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)

RPC_LATENCY = histogram(
    "rocketmq_rpc_latency",
    "How long calls took, milliseconds",
    "protocol_type",
    "request_code",
    "response_code",
    "is_long_polling",
    bounds=BOUNDS_MS,
    unit="milliseconds",
)


class Call(NamedTuple):
    """Which calls are counted together."""

    method: str
    """As RocketMQ writes the names of requests: lower case, words joined by underscores."""
    answer: str
    """"success", or the error's name in lower case."""
    may_wait: bool
    """The caller allowed the service to wait until there is an answer."""


class CallTimes:
    """Every call since the process began. Used by the event loop's thread alone."""

    def __init__(self) -> None:
        # Bounded: methods times errors.
        self._times: dict[Call, Times] = {}

    def note(self, call: Call, seconds: float) -> None:
        times = self._times.get(call)
        if times is None:
            times = self._times[call] = Times(BOUNDS_MS)
        times.note(seconds)

    def note_of(self, method: str, request: object, answer: str, seconds: float) -> None:
        """Note a call of a method; its request says whether the service may wait."""
        may_wait = getattr(request, "wait_ms", 0)
        self.note(Call(method, answer, may_wait > 0), seconds)

    def measurements(self) -> Iterator[Measurement]:
        for call, times in self._times.items():
            waiting = str(call.may_wait).lower()
            labels = ("grpc", call.method, call.answer, waiting)
            yield RPC_LATENCY.spread(times.counts, times.total_ms, *labels)


def with_calls(
    table: Iterable[Metric], measure: Measure, calls: CallTimes
) -> tuple[Iterable[Metric], Measure]:
    """A service's metrics, and how long its calls took."""

    async def measured() -> Iterable[Measurement]:
        return [*await measure(), *calls.measurements()]

    return (*table, RPC_LATENCY), measured


@functools.lru_cache(maxsize=256)
def method_name(path: str) -> str:
    """ "/rockoon.v1.OffsetService/ReadAll" is read_all."""
    name = path.rpartition("/")[2]
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")
