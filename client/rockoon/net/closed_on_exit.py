"""Closed on exit: what lives on a connection, used as an async context manager."""

import logging
from types import TracebackType
from typing import Self

from rockoon.errors import RockoonError
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))


class ClosedOnExit:
    """Gives a class with `close` the context manager that calls it."""

    async def close(self) -> None:
        """To be written by the class."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except RockoonError as untold:
            if failure is None:
                raise
            # What the body raised comes first, and may well be why.
            log.warning("closing after a failure: %s", untold)
