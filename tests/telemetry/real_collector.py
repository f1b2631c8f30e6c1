"""A real OpenTelemetry collector, built from its Go modules, and the spans that it has written."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compare.programs import ROOT, is_made, mark, run
from support.waiting import wait_until

SOURCES = Path(__file__).parent / "collector"
CACHE = ROOT / ".conformance" / "collector"
FILES = ("go.mod", "main.go")

CONFIGURATION = """
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: {endpoint}
exporters:
  file:
    path: {file}
    flush_interval: 100ms
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [file]
    metrics:
      receivers: [otlp]
      exporters: [file]
"""


def program() -> Path:
    """The collector, built once; some minutes. Raises NotHere."""
    content = b"".join((SOURCES / each).read_bytes() for each in FILES)
    if not is_made(CACHE / "made", content):
        CACHE.mkdir(parents=True, exist_ok=True)
        for each in FILES:
            shutil.copy(SOURCES / each, CACHE / each)
        # `go mod tidy` would also need modules of tests, which not every proxy has.
        run(["go", "-C", CACHE, "get", "."])
        run(["go", "-C", CACHE, "build", "-o", "collector", "."])
        mark(CACHE / "made", content)
    return CACHE / "collector"


@dataclass(frozen=True)
class Span:
    """A span as the collector wrote it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    failed: bool


class Collector:
    """A running collector.

    Args:
        address: "host:port" of its OTLP receiver.
        file: where it writes.
    """

    def __init__(self, address: str, file: Path) -> None:
        self.address = address
        self.endpoint = f"http://{address}"
        self._file = file

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            try:
                yield json.loads(line)
            except ValueError:
                return  # the last line is being written

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of a trace."""
        found = []
        for line in self._lines():
            for resource in line.get("resourceSpans", ()):
                attributes = {
                    each["key"]: each["value"] for each in resource["resource"]["attributes"]
                }
                service = attributes["service.name"]["stringValue"]
                for scope in resource["scopeSpans"]:
                    found += [
                        Span(
                            service,
                            each["name"],
                            each["traceId"],
                            each["spanId"],
                            each.get("parentSpanId", ""),
                            each.get("status", {}).get("code") == 2,
                        )
                        for each in scope["spans"]
                        if each["traceId"] == trace_id
                    ]
        return found

    def metric_services(self) -> set[str]:
        """The services whose metrics have arrived."""
        return {
            each["value"]["stringValue"]
            for line in self._lines()
            for resource in line.get("resourceMetrics", ())
            for each in resource["resource"]["attributes"]
            if each["key"] == "service.name"
        }


@contextmanager
def collector(directory: Path) -> Iterator[Collector]:
    """A collector that writes below a directory."""
    built = program()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    file, configuration = directory / "telemetry.json", directory / "collector.yaml"
    configuration.write_text(CONFIGURATION.format(endpoint=address, file=file))
    with (
        (directory / "collector.log").open("wb") as log,
        subprocess.Popen(
            [built, "--config", configuration], stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):

        def listens() -> bool:
            assert process.poll() is None, (directory / "collector.log").read_text()
            host, _, port = address.partition(":")
            with socket.socket() as probe:
                return probe.connect_ex((host, int(port))) == 0

        try:
            wait_until(listens, "the collector listens")
            yield Collector(address, file)
        finally:
            process.terminate()
