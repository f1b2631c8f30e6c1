"""One restart of a target for all scenarios that need one; they run at the same time."""

import threading
from collections.abc import Callable


class SharedRestart:
    """Restarts a target when all scenarios that still run have requested it.

    Args:
        restart: restarts the target.
        scenarios: number of scenarios that will call `ask` or `leave`.
    """

    def __init__(self, restart: Callable[[], None], scenarios: int) -> None:
        self._restart = restart
        self._playing = scenarios
        self._asking = 0
        self._restarts = 0
        self._changed = threading.Condition()

    def ask(self) -> None:
        """Wait for the restart."""
        with self._changed:
            self._asking += 1
            awaited = self._restarts + 1
            self._restart_if_due()
            self._changed.wait_for(lambda: self._restarts >= awaited)

    def leave(self) -> None:
        """Record the end of a scenario, with or without a restart."""
        with self._changed:
            self._playing -= 1
            self._restart_if_due()

    def _restart_if_due(self) -> None:
        if self._asking and self._asking == self._playing:
            try:
                self._restart()
            finally:
                # A failed restart fails the scenario that called; the others find no server.
                self._asking = 0
                self._restarts += 1
                self._changed.notify_all()
