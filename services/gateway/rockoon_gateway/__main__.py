"""`rockoon-gateway`, or `python -m rockoon_gateway`."""

import sys

from rockoon_gateway.server import serve
from rockoon_gateway.settings import GatewaySettings
from rockoon_runtime.process import Program, run

PROGRAM = Program(
    "gateway", "Rockoon's gateway: RocketMQ's 5.x clients on this cluster", GatewaySettings, serve
)


def main() -> int:
    return run(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
