"""The `rockoon` command.

Commands import their dependencies when they run, so that `rockoon --help` starts fast. The exit
status is 0 for success, 1 for a failure (standard error explains it), and 2 for wrong usage.
"""

import gc
import sys


def main() -> None:
    open_closed_descriptors()
    # Modules are not garbage: without their traversals a command starts a sixth faster.
    gc.disable()
    from rockoon.cli.single import plain_single, run_plain_single

    if (options := plain_single(sys.argv[1:])) is not None:
        raise SystemExit(run_plain_single(options))
    try:
        from rockoon.cli.app import run_command_line
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    gc.freeze()
    gc.enable()
    raise SystemExit(run_command_line())


def open_closed_descriptors() -> None:
    """Open the null device on descriptors 0 to 2 that `<&-`, `>&-` or `2>&-` has closed.

    Otherwise the first files that the process opens would get these numbers, and libuv aborts the
    process when it is asked to close one of them.
    """
    import os

    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
