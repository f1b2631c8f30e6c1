"""The broker process: `rockoon-broker`, `python -m rockoon_broker`."""

import sys

from rockoon_runtime.allocator import load_without_collections


def main() -> int:
    load_without_collections()
    from rockoon_broker.server import PROGRAM
    from rockoon_runtime.process import run

    return run(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
