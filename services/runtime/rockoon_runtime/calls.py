"""Call durations by method and result: RocketMQ's histogram `rocketmq_rpc_latency`.

The server records every call with one request and one response; a stream has no duration. A handler
of a request stream records each of its requests.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rockoon_runtime.telemetry.metrics import Measure, Measurement, Metric, Times, histogram

SUCCESS = "success"

# The bounds of RocketMQ 5's RemotingMetricsManager, and two below its 1 ms, because most calls here
# are faster.
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
    """Key of calls that are counted together."""

    method: str
    """RocketMQ's spelling of request names: lower case, words joined by underscores."""
    answer: str
    """"success", or the error's name in lower case."""
    may_wait: bool
    """True if the caller allows the service to wait for data (long polling)."""


class CallTimes:
    """Durations of all calls since the process started. Used only by the event loop's thread."""

    def __init__(self) -> None:
        # Bounded by the number of methods times errors.
        self._times: dict[Call, Times] = {}

    def note(self, call: Call, seconds: float) -> None:
        times = self._times.get(call)
        if times is None:
            times = self._times[call] = Times(BOUNDS_MS)
        times.note(seconds)

    def note_of(self, method: str, request: object, answer: str, seconds: float) -> None:
        """Record a call of a method; its request says whether the service may wait."""
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
    """A service's metrics, and the durations of its calls."""

    async def measured() -> Iterable[Measurement]:
        return [*await measure(), *calls.measurements()]

    return (*table, RPC_LATENCY), measured


@functools.lru_cache(maxsize=256)
def method_name(path: str) -> str:
    """ "/rockoon.v1.OffsetService/ReadAll" is converted to read_all."""
    name = path.rpartition("/")[2]
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")
