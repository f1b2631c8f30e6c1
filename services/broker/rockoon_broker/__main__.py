"""The broker process: `rockoon-broker`, `python -m rockoon_broker`."""

import sys

from rockoon_broker.server import serve
from rockoon_broker.settings import BrokerSettings
from rockoon_runtime.process import Program, run

PROGRAM = Program(
    "broker", "A broker of a Rockoon cluster: it stores messages.", BrokerSettings, serve
)


def main() -> int:
    return run(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
