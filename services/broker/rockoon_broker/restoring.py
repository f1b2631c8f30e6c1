"""Completion of a broker's store whose CommitLog was copied back from a backup.

ConsumeQueues and the index by key are rebuilt from the log. Facts that are not in the log come from
the backup: marks of deleted topics, and the ends of queues whose messages were all deleted.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from rockoon_broker.broker import CONFIG_DIRECTORY, STORE_ID_FILE
from rockoon_broker.store.queues.dropped_topics import FILE as MARKS_FILE
from rockoon_broker.store.recovery.recovery import LOG_DIRECTORY
from rockoon_broker.store.settings import StoreSettings
from rockoon_broker.store.store import Store
from rockoon_core.errors import StoreCorrupt
from rockoon_format.file_names import file_name_to_offset, offset_to_file_name

# Topic → queue id → offset.
QueueOffsets = Mapping[str, Mapping[int, int]]


def restore(
    directory: Path,
    store_id: str,
    file_bytes: int,
    log_end: int,
    ends: QueueOffsets,
    dropped: Mapping[str, int],
    overtaken: Mapping[str, int],
) -> dict[str, dict[int, int]]:
    """Complete a store, and check that it has all messages of the backup.

    Args:
        directory: the store's, with `commitlog` and, for compacted topics, `compacted`.
        store_id: id of the store.
        file_bytes: size of a CommitLog file.
        log_end: physical offset at which the log of the backup ends.
        ends: ends of the queues in the backup.
        dropped: topic → physical offset below which its messages are deleted.
        overtaken: topic → physical offset below which no compacted message is shown.

    Returns:
        The offset of the oldest message of each queue in `ends`.

    Raises:
        StoreCorrupt: the log or a queue ends elsewhere than in the backup.
        StorageError, OSError: the store cannot be opened or written.
    """
    config = directory / CONFIG_DIRECTORY
    config.mkdir(mode=0o700, exist_ok=True)
    (config / STORE_ID_FILE).write_text(store_id + "\n")
    marks = {"marks": dict(dropped), "dropped": [], "overtaken": dict(overtaken)}
    (directory / MARKS_FILE).write_text(json.dumps(marks, indent=1, sort_keys=True))
    with Store.open(StoreSettings(root=directory, commit_log_file_bytes=file_bytes)) as store:
        if (found := store.recovery.log_end) != log_end:
            raise StoreCorrupt(
                path=directory, reason=f"its log ends at {found}, and in the backup at {log_end}"
            )
        store.restore_queue_ends(ends)
        restored = store.queue_ends()
        for topic, queues in ends.items():
            for queue_id, end in queues.items():
                if (found := restored.get(topic, {}).get(queue_id, 0)) != end:
                    raise StoreCorrupt(
                        path=directory,
                        reason=f"queue {queue_id} of topic {topic} ends at {found}, and in the "
                        f"backup at {end}",
                    )
        begins = {
            topic: {queue_id: store.min_offset(topic, queue_id) for queue_id in queues}
            for topic, queues in ends.items()
        }
    # As a running broker does. A start then knows the size of files, whatever its setting is.
    log = directory / LOG_DIRECTORY
    for last in sorted(path.name for path in log.iterdir())[-1:]:
        with (log / offset_to_file_name(file_name_to_offset(last) + file_bytes)).open("wb") as file:
            file.truncate(file_bytes)
    return begins
