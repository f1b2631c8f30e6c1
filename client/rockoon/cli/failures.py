"""From an exception to one sentence and an exit status."""

import os
import sys

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot do what was asked; the text is the sentence to print."""


def report(failure: BaseException) -> int:
    """Print what a person can do about a failure, and return the exit status.

    Anything that is not an expected failure is raised again: a traceback is then the right thing.
    """
    from rockoon.errors import NameserverUnavailable, RockoonError
    from rockoon.local.process import LocalClusterError

    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    if isinstance(failure, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(failure, BrokenPipeError):
        # Whoever read our output has seen enough. Python must not try to flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if isinstance(failure, NameserverUnavailable):
        return complain(
            f"{failure}: start a cluster here with `rockoon up`, "
            "or say where it is with --nameservers"
        )
    if isinstance(failure, RockoonError | CommandError | LocalClusterError):
        return complain(str(failure))
    if isinstance(failure, OSError) and failure.filename is not None:
        return complain(f"{failure.filename}: {failure.strerror}")
    raise failure


def complain(sentence: str) -> int:
    print(f"rockoon: {sentence}", file=sys.stderr)
    return FAILED
