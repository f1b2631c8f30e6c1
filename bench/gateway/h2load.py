"""Unary calls by h2load (Debian: nghttp2-client), which takes a ready gRPC message as its data."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.compare.fetching import NotHere, run
from bench.compare.programs import MeasureFailed

PROGRAM = "h2load"
_PREFIX = struct.Struct(">BI")
_SECONDS = re.compile(r"finished in ([\d.]+)(us|ms|s|m)")
_SUCCEEDED = re.compile(r"(\d+) succeeded")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Load:
    """Calls that were answered.

    Attributes:
        calls: how many.
        seconds: from the first connection to the last answer.
        waits: seconds of each.
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
    """Make calls on some connections.

    Args:
        endpoint: "host:port".
        method: path of the gRPC method.
        request: a serialized message, the same for each call.
        headers: beside gRPC's.
        calls: how many, over all connections.
        folder: for files of a moment.
        at_once: calls in progress on each connection.

    Returns:
        The calls. HTTP says that they were answered; what the answers are has to be seen elsewhere.

    Raises:
        NotHere: there is no h2load.
        MeasureFailed: not each call was answered.
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
