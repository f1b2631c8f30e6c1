"""`rockoon-nameserver`, or `python -m rockoon_nameserver`."""

import sys

from rockoon_nameserver.server import serve
from rockoon_nameserver.settings import NameserverSettings
from rockoon_runtime.process import Program, run

PROGRAM = Program(
    "nameserver", "Rockoon's nameserver: serves the cluster's routes", NameserverSettings, serve
)


def main() -> int:
    return run(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
