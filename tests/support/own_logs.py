"""What Rockoon itself logged during a test."""

import logging

import pytest


def own_warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Warnings and errors of Rockoon's own loggers.

    Not asyncio's: grpc.aio's poller, when several event loops lived in one process, now and then
    reports a BlockingIOError of its own that harms nothing.
    """
    return [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("rockoon")
    ]
