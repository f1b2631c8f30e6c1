"""A broker process whose disk fails every sync of the log after SIGUSR1. A program of the tests."""

import errno
import signal
import sys
from types import FrameType

from rockoon_broker.server import serve
from rockoon_broker.settings import BrokerSettings
from rockoon_runtime.process import Program, Stop, run
from support.store_directory import FailingDisk, in_log

disk = FailingDisk()


def break_disk(number: int, frame: FrameType | None) -> None:
    disk.fail_sync = lambda path: errno.EIO if in_log(path) else 0


async def serve_on_it(settings: BrokerSettings, stop: Stop) -> None:
    signal.signal(signal.SIGUSR1, break_disk)
    await serve(settings, stop, disk=disk)


if __name__ == "__main__":
    program = Program("broker", "A broker on a failing disk.", BrokerSettings, serve_on_it)
    sys.exit(run(program))
