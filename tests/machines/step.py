"""The step `three-machines` of `make day2`."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

SKIPPED = 2


async def run(_folder: Path, report: Callable[[str], None]) -> None:
    """Run the page in a separate process. Its machines end with the process.

    Args:
        report: prints a line.

    Raises:
        AssertionError: a command of the page failed, or a promise does not hold.
    """
    command = (sys.executable, "-m", "machines")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            report(line.decode().rstrip())
    finally:
        status = await process.wait()
    assert status in (0, SKIPPED), f"the page failed with status {status}"
