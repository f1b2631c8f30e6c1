"""Windows of all queues that receivers have acquired messages from. Pure.

A window belongs to progress under one epoch. A higher epoch (after a reset, a member that pulls, or
a new start) or the removal of the progress ends the window with all its acquisitions.
"""

from collections.abc import Iterator, Mapping

from rockoon_core.message_queue import MessageQueue
from rockoon_offset.in_flight.window import Window
from rockoon_offset.progress.records import Acquired, Record, WindowPut

NONE: Mapping[MessageQueue, Window] = {}


class Windows:
    """See the module."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, Window]] = {}

    def __iter__(self) -> Iterator[tuple[str, MessageQueue, Window]]:
        for group, windows in self._groups.items():
            for queue, window in windows.items():
                yield group, queue, window

    def find(self, group: str, queue: MessageQueue) -> Window | None:
        return self._groups.get(group, NONE).get(queue)

    def of(self, group: str, queue: MessageQueue) -> Window:
        """An existing window. Raises KeyError."""
        return self._groups[group][queue]

    def of_group(self, group: str) -> Mapping[MessageQueue, Window]:
        return self._groups.get(group, NONE)

    def open(self, group: str, queue: MessageQueue, offset: int) -> Window:
        """Return the window of a queue; a new one starts at the committed offset."""
        windows = self._groups.setdefault(group, {})
        if (found := windows.get(queue)) is None:
            found = windows[queue] = Window(offset)
        return found

    def committed(self, group: str, queue: MessageQueue, offset: int) -> int:
        """Apply a commit to the window. Returns the first unsettled offset from `offset` on."""
        window = self.find(group, queue)
        if window is None:
            return offset
        if offset < window.floor:
            # A forced commit: all messages from the offset on are delivered again.
            self.drop(group, queue)
            return offset
        window.commit(offset)
        return window.floor

    def drop(self, group: str, queue: MessageQueue) -> None:
        windows = self._groups.get(group)
        if windows is not None and windows.pop(queue, None) is not None and not windows:
            del self._groups[group]

    def drop_group(self, group: str) -> None:
        self._groups.pop(group, None)

    def snapshot(self) -> Iterator[Record]:
        """Records that restore all windows. The state is copied now; the iterator may run later."""
        copied = [
            (
                WindowPut(
                    group,
                    queue,
                    window.acquired_to,
                    window.since,
                    window.settled,
                    window.skipped,
                ),
                list(window),
            )
            for group, windows in self._groups.items()
            for queue, window in windows.items()
            if window.since
        ]

        def records() -> Iterator[Record]:
            for put, acquisitions in copied:
                yield put
                for each in acquisitions:
                    for at_ms, messages in each.parts.items():
                        yield Acquired(
                            put.group,
                            put.queue,
                            each.number,
                            0,
                            each.first,
                            messages,
                            each.attempt,
                            at_ms,
                            each.attempt_id,
                            *each[5:],
                        )

        return records()
