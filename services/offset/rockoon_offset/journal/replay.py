"""Replay: builds a ledger from the frames of a journal. Pure.

A file starts with the state before its first frame, and changes may come between the parts of the
state. A replica that has the ledger already skips the state. A replica that starts with this file
applies the state first, and then the changes between its parts.
"""

from rockoon_offset.journal.frames import FrameKind, LogFrame, decode_epochs, unpack
from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import decode


class Replay:
    """Builds a ledger: applies frames in order.

    Attributes:
        ledger: the ledger; a new object if a state starts again.
        is_whole: the ledger contains all frames so far.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.is_whole = False
        self._changes: list[bytes] = []

    def apply(self, frame: LogFrame) -> None:
        """Apply one frame to the ledger.

        Raises:
            ValueError, TypeError, KeyError: a record is invalid.
        """
        match frame.kind:
            case FrameKind.EPOCH:
                epochs = decode_epochs(frame.payload)
                if not self.is_whole and epochs.is_first:
                    # The former leader ended before it had written its whole state.
                    self.ledger = Ledger()
                    self._changes.clear()
                    self.is_whole = epochs.is_empty
            case FrameKind.STATE:
                if not self.is_whole:
                    self._apply(frame.payload)
            case FrameKind.DAMAGED_STATE:
                if not self.is_whole:
                    raise ValueError("a frame of the state fails its checksum")
            case FrameKind.STATE_END:
                if not self.is_whole:
                    self.is_whole = True
                    for payload in self._changes:
                        self._apply(payload)
                    self._changes.clear()
            case FrameKind.RECORDS:
                if self.is_whole:
                    self._apply(frame.payload)
                else:
                    self._changes.append(frame.payload)

    def _apply(self, payload: bytes) -> None:
        for record in unpack(payload):
            self.ledger.apply(decode(record))
