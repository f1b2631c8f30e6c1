"""Context manager of objects on a connection."""

import logging
from types import TracebackType
from typing import Self

from rockoon.errors import RockoonError
from rockoon_core.repeated_lines import limited

log = limited(logging.getLogger(__name__))


class ClosedOnExit:
    """Async context manager that calls the subclass's `close` on exit."""

    async def close(self) -> None:
        """Close the object; the subclass implements it."""
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
        except RockoonError as close_error:
            if failure is None:
                raise
            # The body's exception is raised instead; it may be the cause of this failure.
            log.warning("closing failed after an exception of the with block: %s", close_error)
