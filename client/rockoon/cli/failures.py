"""From an exception to one sentence and an exit status."""

import errno
import os
import sys

# What a write into a file or device runs into. Files that a command opens by name bear the name.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

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
        # The reader of our output, as `head`, has read enough: that is not an error.
        drop_output()
        return 0
    if isinstance(failure, NameserverUnavailable):
        return complain(
            f"{failure}: start a cluster here with `rockoon up`, "
            "or say where it is with --nameservers"
        )
    if isinstance(failure, RockoonError | CommandError | LocalClusterError):
        return complain(str(failure))
    if isinstance(failure, OSError) and failure.filename is not None:
        return complain(f"{failure.filename}: {failure.strerror}")
    if isinstance(failure, OSError) and failure.errno in UNWRITABLE:
        drop_output()
        return complain(f"the output cannot be written: {failure.strerror}")
    if isinstance(failure, UnicodeEncodeError):
        from rockoon_core.valid_text import encoding_fault

        # A request could not be encoded. Standard output does not raise this: it escapes the text.
        return complain(encoding_fault(failure))
    raise failure


def drop_output() -> None:
    """Keep Python from flushing at exit what cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(sentence: str) -> int:
    print(f"rockoon: {sentence}", file=sys.stderr)
    return FAILED
