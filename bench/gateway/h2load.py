"""Unary calls with h2load (Debian: nghttp2-client), which sends an encoded gRPC message as data."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.compare.programs import MeasureFailed, NotHere, run

PROGRAM = "h2load"
_PREFIX = struct.Struct(">BI")
_SECONDS = re.compile(r"finished in ([\d.]+)(us|ms|s|m)")
_SUCCEEDED = re.compile(r"(\d+) succeeded")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Load:
    """Result of a load with h2load.

    Attributes:
        seconds: elapsed time from the first connection to the last reply.
        waits: latency of each call in seconds.
    """

    calls: int
    seconds: float
    waits: list[float]


def load(
    endpoint: str,
    method: str,
    request: bytes,
    headers: Mapping[str, str],
    calls: int,
    connections: int,
    folder: Path,
    at_once: int = 1,
) -> Load:
    """Run h2load: make unary calls on some connections.

    Args:
        endpoint: "host:port".
        method: path of the gRPC method.
        request: a serialized message, the same for each call.
        headers: in addition to those of gRPC.
        calls: number of calls over all connections.
        at_once: calls in flight on each connection.

    Returns:
        The calls. Only the HTTP status is checked; the caller must check the effect of the calls.

    Raises:
        NotHere: h2load is not installed.
        MeasureFailed: a call was not answered.
    """
    data, log = folder / "request", folder / "waits"
    data.write_bytes(_PREFIX.pack(0, len(request)) + request)
    log.unlink(missing_ok=True)
    sent = {"content-type": "application/grpc", "te": "trailers", **headers}
    said = run(
        [
            *(PROGRAM, "-n", calls, "-c", connections, "-m", at_once, "-t", 1),
            *("-d", data, f"--log-file={log}"),
            *(word for name, value in sent.items() for word in ("-H", f"{name}: {value}")),
            f"http://{endpoint}{method}",
        ]
    )
    took, succeeded = _SECONDS.search(said), _SUCCEEDED.search(said)
    if took is None or succeeded is None:
        raise NotHere(f"{PROGRAM} says something else than it did: {said[-300:]}")
    if int(succeeded[1]) != calls:
        raise MeasureFailed(f"{succeeded[1]} of {calls} calls were answered")
    waits = [int(line.split("\t")[2]) / 1e6 for line in log.read_text().splitlines()]
    return Load(calls, float(took[1]) * _UNITS[took[2]], waits)
