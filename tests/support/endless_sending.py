"""A producer that sends until a test stops it."""

import threading

from rockoon.sync import Cluster

AHEAD = 300
PACE_SECONDS = 0.01


class Sending(threading.Thread):
    """Sends numbers until it is stopped: some without a pause, then with a pause after each.

    Attributes:
        acknowledged: number of stored messages.
        begun: number of messages whose send has begun.
    """

    def __init__(self, connection: Cluster, topic: str) -> None:
        super().__init__()
        self.acknowledged = self.begun = 0
        self._connection, self._topic = connection, topic
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            number = self.begun
            self.begun += 1
            # One at a time: the time to read a log grows with its size.
            self._connection.send(self._topic, b"%d" % number)
            self.acknowledged = self.begun
            if number > AHEAD:
                self._is_over.wait(PACE_SECONDS)

    def __enter__(self) -> "Sending":
        self.start()
        while self.is_alive() and self.acknowledged < AHEAD:
            self.join(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()
