"""Opens a recovered log: its files and the Syncer."""

from collections.abc import Callable

from rockoon_broker.store.log.commit_log import CommitLog
from rockoon_broker.store.log.syncer import Syncer
from rockoon_broker.store.recovery.checkpoint_files import MarkerFiles
from rockoon_broker.store.recovery.outcome import Recovery
from rockoon_broker.store.recovery.recovery import LOG_DIRECTORY
from rockoon_broker.store.settings import StoreSettings
from rockoon_core.disk import Disk


def open_log(
    settings: StoreSettings,
    disk: Disk,
    recovery: Recovery,
    on_synced: Callable[[int], None],
    on_failed: Callable[[OSError], None],
) -> tuple[MarkerFiles, Syncer, CommitLog]:
    """Return the marker files, the Syncer (not started), and the open log.

    Args:
        settings, disk: of the store.
        recovery: result of the recovery.
        on_synced, on_failed: see `Store.open`.

    Raises:
        OSError: the disk.
    """
    root, directory = settings.root, settings.root / LOG_DIRECTORY
    file_bytes = settings.commit_log_file_bytes
    disk.make_directory(directory)
    markers = MarkerFiles(root, disk)
    syncer = Syncer(
        disk,
        markers,
        directory,
        file_bytes,
        synced_end=recovery.log_end,
        on_synced=on_synced,
        on_failed=on_failed,
    )
    log = CommitLog(
        directory,
        file_bytes,
        disk,
        starts=list(recovery.starts),
        end=recovery.log_end,
        claim_reserved=syncer.claim_file,
    )
    return markers, syncer, log
