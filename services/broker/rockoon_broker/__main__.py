"""The broker process: `rockoon-broker`, `python -m rockoon_broker`."""

import sys

from rockoon_broker.server import PROGRAM
from rockoon_runtime.process import run


def main() -> int:
    return run(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
