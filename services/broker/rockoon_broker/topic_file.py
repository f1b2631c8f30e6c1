"""`config/topics.json`, in RocketMQ's form: what a broker serves while no nameserver answers.

Beside RocketMQ's fields a topic bears its `incarnation`, and the file the `routeRevision` that it
is true for and the `routeHistory`, the etcd that counted it; RocketMQ ignores them. Fields of
RocketMQ's that we do not use stay as they are.
Source: TopicConfigSerializeWrapper, TopicConfig, ConfigManager.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rockoon_broker.store.disk import Disk
from rockoon_broker.store.errors import StoreLayoutError
from rockoon_broker.topics import (
    INCARNATION_UNKNOWN,
    PERMISSIONS_DEFAULT,
    ServedTopic,
    TopicTable,
)

FILE = "topics.json"
QUEUES_DEFAULT = 16
DEFAULTS: Mapping[str, object] = {
    "order": False,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
}


class TopicFile:
    """The file, and what it held when it was last read or written.

    Args:
        config: the store's config directory.
        disk: where the file is written.
    """

    def __init__(self, config: Path, disk: Disk) -> None:
        self._path = config / FILE
        self._disk = disk
        self._entries: Mapping[str, Any] = {}
        self._version = 0

    def read(self) -> TopicTable:
        """The topics as they were last served; an empty table when there is no file.

        Raises:
            StoreLayoutError: it cannot be read as topics. Starting without would refuse, as
                unknown, topics whose messages are there.
        """
        if not self._path.exists():
            return TopicTable()
        try:
            content = json.loads(self._path.read_bytes())
            self._entries = content.get("topicConfigTable") or {}
            self._version = int((content.get("dataVersion") or {}).get("counter", 0))
            topics = {name: topic_from_json(name, raw) for name, raw in self._entries.items()}
            return TopicTable(
                revision=int(content.get("routeRevision", 0)),
                history=int(content.get("routeHistory", 0)),
                topics=topics,
            )
        except (ValueError, TypeError, AttributeError) as failure:
            raise StoreLayoutError(f"{self._path} cannot be read: {failure}") from failure

    def write(self, table: TopicTable, now_ms: int) -> None:
        """Durably replace the file.

        Raises:
            OSError: the old file is still there.
        """
        entries = {
            topic.name: {**DEFAULTS, **self._entries.get(topic.name, {}), **topic_to_json(topic)}
            for topic in table.served
        }
        version = {"counter": self._version + 1, "stateVersion": 0, "timestamp": now_ms}
        content = {
            "dataVersion": version,
            "routeRevision": table.revision,
            "routeHistory": table.history,
            "topicConfigTable": entries,
        }
        for changed in self._disk.make_directory(self._path.parent):
            self._disk.sync_directory(changed)
        text = json.dumps(content, indent="\t", sort_keys=True)
        self._disk.replace_file(self._path, text.encode())
        self._entries = entries
        self._version += 1


def topic_from_json(name: str, raw: Mapping[str, Any]) -> ServedTopic:
    return ServedTopic(
        name=name,
        queues=max(
            int(raw.get("readQueueNums", QUEUES_DEFAULT)),
            int(raw.get("writeQueueNums", QUEUES_DEFAULT)),
        ),
        incarnation=int(raw.get("incarnation", INCARNATION_UNKNOWN)),
        permissions=int(raw.get("perm", PERMISSIONS_DEFAULT)),
        attributes=dict(raw.get("attributes") or {}),
    )


def topic_to_json(topic: ServedTopic) -> dict[str, object]:
    return {
        "topicName": topic.name,
        "readQueueNums": topic.queues,
        "writeQueueNums": topic.queues,
        "perm": topic.permissions,
        "attributes": dict(topic.attributes),
        "incarnation": topic.incarnation,
    }
