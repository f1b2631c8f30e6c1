"""`rockoon-offset`, or `python -m rockoon_offset`."""

import sys

from rockoon_runtime.allocator import load_without_collections, run_with_system_allocator


def main() -> int:
    run_with_system_allocator()
    load_without_collections()
    # After the restart of the process, so that nothing is imported twice.
    from rockoon_offset.server import PROGRAM
    from rockoon_runtime.process import run

    return run(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
