"""Due times of an open store's periodic work. Pure."""

from collections.abc import Callable

from rockoon_broker.store.settings import StoreSettings


class Dues:
    """Epoch milliseconds; the code that does the work sets the next due time.

    Args:
        settings: the intervals.
        now_ms: epoch milliseconds.
    """

    def __init__(self, settings: StoreSettings, now_ms: int) -> None:
        self._settings = settings
        self.sync_ms = self.save_ms = self.point_ms = self.probe_ms = now_ms
        self.disk_check_ms = now_ms + settings.disk_check_delay_ms

    def save(self, now_ms: int, save: Callable[[], bool]) -> None:
        """Run `save` if it is due. After a failure it is due immediately, so that a full disk is
        noticed even while a recovery point waits for space."""
        if now_ms >= self.save_ms and save():
            self.save_ms = now_ms + self._settings.recovery_point_interval_ms

    def correct_for(self, now_ms: int) -> None:
        """Reduce due times that are too far in the future because the clock was set back."""
        settings = self._settings
        disk_check_wait_ms_max = max(settings.disk_check_delay_ms, settings.disk_check_interval_ms)
        self.sync_ms = min(self.sync_ms, now_ms + settings.flush_interval_ms)
        self.save_ms = min(self.save_ms, now_ms + settings.recovery_point_interval_ms)
        self.probe_ms = min(self.probe_ms, now_ms + settings.recovery_point_interval_ms)
        self.point_ms = min(self.point_ms, now_ms + settings.recovery_point_interval_ms)
        self.disk_check_ms = min(self.disk_check_ms, now_ms + disk_check_wait_ms_max)
