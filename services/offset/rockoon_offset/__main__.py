"""`rockoon-offset`, or `python -m rockoon_offset`."""

import sys

from rockoon_offset.server import serve
from rockoon_offset.settings import OffsetSettings
from rockoon_runtime.process import Program, run

PROGRAM = Program(
    "offset", "Rockoon's offset service: progress of consumer groups", OffsetSettings, serve
)


def main() -> int:
    return run(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
