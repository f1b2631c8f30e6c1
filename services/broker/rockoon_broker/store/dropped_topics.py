"""Topics that were deleted while the CommitLog still holds their messages.

A mark says: records of this topic below this physical offset do not exist. Without it the start
after a crash, or a rebuild, would bring a deleted topic's messages back, and a topic created anew
under the name would not begin at offset 0.
"""

import json
from pathlib import Path

from rockoon_broker.store.disk import Disk
from rockoon_broker.store.errors import StoreLayoutError

FILE = "config/droppedTopics.json"


class DroppedTopics:
    """The marks, in memory and in `config/droppedTopics.json`; each change is durable on return.

    Raises:
        StoreLayoutError: the file is damaged. Guessing would resurrect deleted messages.
    """

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE
        self._disk = disk
        self._marks = read_marks(root)

    @property
    def marks(self) -> dict[str, int]:
        """Topic to the physical offset below which its records are ignored."""
        return dict(self._marks)

    def add(self, topic: str, log_end: int) -> None:
        """Ignore the topic's records below `log_end` from now on."""
        self._replace({**self._marks, topic: log_end})

    def settle(self, log_min: int, log_end: int) -> None:
        """Fit the marks to the log: forget those that retention passed, clamp those above its end.

        A mark above the end (the crash took the records it was made for) would otherwise hide
        records yet to be written.
        """
        marks = {topic: min(mark, log_end) for topic, mark in self._marks.items()}
        marks = {topic: mark for topic, mark in marks.items() if mark > log_min}
        if marks != self._marks:
            self._replace(marks)

    def _replace(self, marks: dict[str, int]) -> None:
        self._disk.make_directory(self._path.parent)
        self._disk.replace_file(self._path, json.dumps(marks, indent=1, sort_keys=True).encode())
        self._marks = marks


def read_marks(root: Path) -> dict[str, int]:
    """The marks of a store directory; StoreLayoutError if the file cannot be read."""
    path = root / FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
        return {str(topic): int(mark) for topic, mark in content.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreLayoutError(f"{path} is damaged: {error}") from error
