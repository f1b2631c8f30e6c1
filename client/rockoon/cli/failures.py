"""Converts an exception into an error message and an exit status."""

import errno
import os
import sys

# Errors of writes to standard output. Errors of files opened by name carry the name.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

FAILED = 1

INTERRUPTED = 130


class CommandError(Exception):
    """Raised if the command cannot be executed; the text is the error message."""


def report(failure: BaseException) -> int:
    """Print an error message for an expected failure and return the exit status.

    Any other failure is raised again, so that Python prints its traceback.
    """
    from rockoon.backup.destination import BackupError
    from rockoon.errors import NameserverUnavailable, RockoonError
    from rockoon.local.process import LocalClusterError

    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    if isinstance(failure, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(failure, BrokenPipeError):
        # The process that reads our output, for example `head`, has ended: not an error.
        drop_output()
        return 0
    if isinstance(failure, NameserverUnavailable):
        return complain(
            f"{failure}: start a local cluster with `rockoon up`, "
            "or name the nameservers with --nameservers"
        )
    if isinstance(failure, RockoonError | CommandError | BackupError | LocalClusterError):
        return complain(str(failure))
    if isinstance(failure, OSError) and failure.filename is not None:
        return complain(f"{failure.filename}: {failure.strerror}")
    if isinstance(failure, OSError) and failure.errno in UNWRITABLE:
        drop_output()
        return complain(f"cannot write the output: {failure.strerror}")
    if isinstance(failure, UnicodeEncodeError):
        from rockoon_core.valid_text import encoding_fault

        # A request could not be encoded. Standard output never raises this: it escapes the text.
        return complain(encoding_fault(failure))
    raise failure


def drop_output() -> None:
    """Redirect standard output to the null device, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(sentence: str) -> int:
    print(f"rockoon: {sentence}", file=sys.stderr)
    return FAILED
