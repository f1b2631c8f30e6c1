"""The `rockoon` command.

Nothing heavy is imported before a command needs it: `rockoon --help` must feel instant. The exit
status is 0, 1 for a failure (one sentence on standard error says what to do), 2 for wrong usage.
"""

import sys


def main() -> None:
    """Run the command line and exit."""
    open_closed_descriptors()
    from rockoon.cli.single import plain_single, run_plain_single

    if (said := plain_single(sys.argv[1:])) is not None:
        raise SystemExit(run_plain_single(said))
    try:
        from rockoon.cli.app import run_command_line
    except KeyboardInterrupt:
        raise SystemExit(130) from None

    raise SystemExit(run_command_line())


def open_closed_descriptors() -> None:
    """Give `<&-`, `>&-` and `2>&-` something to hold.

    The first files that are opened would get these numbers, and libuv ends the process when it is
    to close one of them.
    """
    import os

    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
