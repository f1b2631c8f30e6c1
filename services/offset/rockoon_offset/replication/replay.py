"""Replay: a ledger out of a journal's frames. Pure.

A file begins with the state that all before it has made, and changes may come between the parts of
that. Who has the ledger already leaves the state out; who begins with this file applies the state
first, and then the changes that came meanwhile.
"""

from rockoon_offset.progress.ledger import Ledger
from rockoon_offset.progress.records import decode
from rockoon_offset.replication.frames import Kind, LogFrame, decode_epochs, unpack


class Replay:
    """Applies frames in their order.

    Attributes:
        ledger: what they have made; another object where a state begins anew.
        is_whole: whether the ledger is that of all frames so far.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.is_whole = False
        self._changes: list[bytes] = []

    def take(self, frame: LogFrame) -> None:
        """Apply one frame.

        Raises:
            ValueError, TypeError, KeyError: it holds what no version has written.
        """
        match frame.kind:
            case Kind.EPOCH:
                epochs = decode_epochs(frame.payload)
                if not self.is_whole and epochs.is_first:
                    # The leader of the state that was being read has ended before its end.
                    self.ledger = Ledger()
                    self._changes.clear()
                    self.is_whole = epochs.is_empty
            case Kind.STATE:
                if not self.is_whole:
                    self._apply(frame.payload)
            case Kind.STATE_END:
                if not self.is_whole:
                    self.is_whole = True
                    for payload in self._changes:
                        self._apply(payload)
                    self._changes.clear()
            case Kind.RECORDS:
                if self.is_whole:
                    self._apply(frame.payload)
                else:
                    self._changes.append(frame.payload)

    def _apply(self, payload: bytes) -> None:
        for record in unpack(payload):
            self.ledger.apply(decode(record))
