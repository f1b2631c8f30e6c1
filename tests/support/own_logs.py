"""Log lines of Rockoon's own loggers during a test."""

import logging

import pytest


def own_warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return warnings and errors of Rockoon's own loggers.

    asyncio's are left out: if several event loops have run in one process, the poller of grpc.aio
    sometimes reports a BlockingIOError that has no effect.
    """
    return [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("rockoon")
    ]
