"""A service without a function, for tests of a process's start and end."""

import asyncio
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rockoon_core.errors import NameserverUnavailable
from rockoon_runtime.frontend import Frontend, ServiceSettings
from rockoon_runtime.process import ExitStatus, Fatal, Program, Stop, announce, run
from rockoon_runtime.settings import setting
from rockoon_runtime.telemetry.metrics import Measurement


@dataclass(frozen=True)
class SampleSettings(ServiceSettings):
    cluster: str = setting("test", "the cluster's name")
    name: str = setting("sample-1", "this service's name")
    listen: str = setting("127.0.0.1:0", "where to listen")
    fail: str = setting("", "how to end: start, later, disk, bug or not at all")


async def no_metrics() -> Iterable[Measurement]:
    return ()


async def serve(
    settings: SampleSettings,
    stop: Stop,
    *,
    announce: Callable[[str, str, str], None] = announce,
) -> None:
    if settings.fail == "start":
        raise NameserverUnavailable(address="127.0.0.1:1")
    if settings.fail == "bug":
        raise RuntimeError("nobody foresaw this")
    frontend = Frontend("sample", settings, {})
    async with (
        frontend.telemetry((), no_metrics) as telemetry,
        frontend.server(lambda _: None, (), tracer=telemetry.tracer) as server,
    ):
        await server.set_serving(True)
        announce("sample", settings.name, server.address)
        if settings.fail == "disk":
            stop.fail(Fatal(ExitStatus.DISK_FAILED, "fsync failed"))
        await stop.wait()
        if settings.fail == "later":
            announce("sample", "draining", server.address)
            await asyncio.Event().wait()


PROGRAM = Program("sample", "A service with nothing in it.", SampleSettings, serve)

if __name__ == "__main__":
    sys.exit(run(PROGRAM))
