"""Fast start of `rockoon up --single`: skips the command line framework.

Loading the framework takes as long as the rest of the start. Only the simplest form is parsed here;
any other command line, including --help and invalid options, is left to the framework.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PORT_MAX = 65_535


class PlainSingle(NamedTuple):
    """Options of the command line; the defaults are those of `up`."""

    directory: Path = Path(".rockoon")
    port: int = 9876
    flush: str | None = None


def plain_single(arguments: Sequence[str]) -> PlainSingle | None:
    """Return the options of `up --single` with at most `--dir`, `--port` and `--flush`; None for
    any other command line."""
    if arguments[:1] != ["up"] or "--single" not in arguments or "_ROCKOON_COMPLETE" in os.environ:
        return None
    options = PlainSingle()
    left = iter(arguments[1:])
    for each in left:
        if each == "--single":
            continue
        name, has_value, value = each.partition("=")
        value = value if has_value else next(left, "")
        if name == "--dir" and value and not value.startswith("-"):
            options = options._replace(directory=Path(value))
        elif name == "--port" and value.isdecimal() and 1 <= int(value) <= PORT_MAX:
            options = options._replace(port=int(value))
        elif name == "--flush" and value in ("sync", "async"):
            options = options._replace(flush=value)
        else:
            return None
    return options


def run_plain_single(options: PlainSingle) -> int:
    """Replace this process by the cluster; return the exit status if that fails."""
    try:
        from rockoon.cli.up import run_up

        return run_up(options.directory, port=options.port, flush=options.flush, single=True)
    except BaseException as failure:  # noqa: BLE001 - the root: reports, or raises it again
        from rockoon.cli.failures import report

        return report(failure)
