"""Due times of an open store's regular work. Pure."""

from collections.abc import Callable

from rockoon_broker.store.settings import StoreSettings


class Dues:
    """Epoch milliseconds; whoever does the work sets when it is due next.

    Args:
        settings: how often.
        now_ms: epoch milliseconds.
    """

    def __init__(self, settings: StoreSettings, now_ms: int) -> None:
        self._settings = settings
        self.sync_ms = self.save_ms = self.point_ms = self.probe_ms = now_ms
        self.disk_check_ms = now_ms + settings.disk_check_delay_ms

    def save(self, now_ms: int, save: Callable[[], bool]) -> None:
        """Have entries saved if that is due, at once again where it fails: so a full disk is met
        also while a recovery point waits for room."""
        if now_ms >= self.save_ms and save():
            self.save_ms = now_ms + self._settings.recovery_point_interval_ms

    def correct_for(self, now_ms: int) -> None:
        """Put nothing off to a future that only a clock set back can explain."""
        settings = self._settings
        disk_check_wait_ms_max = max(settings.disk_check_delay_ms, settings.disk_check_interval_ms)
        self.sync_ms = min(self.sync_ms, now_ms + settings.flush_interval_ms)
        self.save_ms = min(self.save_ms, now_ms + settings.recovery_point_interval_ms)
        self.probe_ms = min(self.probe_ms, now_ms + settings.recovery_point_interval_ms)
        self.point_ms = min(self.point_ms, now_ms + settings.recovery_point_interval_ms)
        self.disk_check_ms = min(self.disk_check_ms, now_ms + disk_check_wait_ms_max)
