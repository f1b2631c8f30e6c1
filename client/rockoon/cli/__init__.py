"""The `rockoon` command.

Nothing heavy is imported before a command needs it: `rockoon --help` must feel instant. The exit
status is 0, 1 for a failure (one sentence on standard error says what to do), 2 for wrong usage.
"""


def main() -> None:
    """Run the command line and exit."""
    try:
        from rockoon.cli.app import run_command_line
    except KeyboardInterrupt:
        raise SystemExit(130) from None

    raise SystemExit(run_command_line())
