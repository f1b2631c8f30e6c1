"""Context manager for objects with blocking `start` and `stop`."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rockoon.local.process import LocalClusterError


class Startable(ABC):
    """Base class for `with` and `async with`; the latter does not block the event loop."""

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it; does nothing when it is stopped."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, and the processes that it starts would remain.
            with contextlib.suppress(LocalClusterError):
                await starting
                await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)
