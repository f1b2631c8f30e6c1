"""Clients of one language before several gateways: a producer, and two push consumers."""

import random
import threading
import time
from collections.abc import Sequence

from conformance.client_process import ClientFailed, ClientGone, ClientProcess
from conformance.languages import Prepared
from conformance.scene import LOOK_SECONDS, Scene
from conformance.several.judge import Delivery, Group

CONSUMERS = 2
# One message in LONG_ONE_OF is handled for LONG_SECONDS.
LONG_ONE_OF = 80
LONG_SECONDS = (40.0, 100.0)


class Crew:
    """See the module.

    Args:
        scene: the crew's own; the crew closes it.
        language: of its clients.
        endpoint: of the balancer that all of its clients use.
        count: messages to send.
        seconds: for how long it sends.
        chance: decides which messages are worked on for how long.
    """

    def __init__(
        self,
        scene: Scene,
        language: Prepared,
        endpoint: str,
        *,
        count: int,
        seconds: float,
        chance: random.Random,
    ) -> None:
        self.name = language.language
        self.faults: list[str] = []
        self.failed_sends = 0
        self._scene = scene
        self._endpoint = endpoint
        self._count = count
        self._seconds = seconds
        self._chance = chance
        self.topic, self.group = scene.topic(), scene.group()
        self._over = threading.Event()
        self._sent: dict[str, float] = {}
        self._clients: dict[str, ClientProcess] = {}
        self._killed: dict[str, float] = {}
        for _ in range(CONSUMERS):
            self._listen()
        self._sender = scene.sender(self.topic, scene.client(), endpoint=endpoint)
        self._sending = threading.Thread(target=self._send, daemon=True)
        self._sending.start()

    @property
    def sent(self) -> int:
        """Messages that were acknowledged to the producer so far."""
        return len(self._sent)

    @property
    def handled(self) -> int:
        """Calls of listeners that have returned so far."""
        return sum(len(client.events("worked")) for client in self._clients.values())

    @property
    def is_sending(self) -> bool:
        return self._sending.is_alive()

    def _listen(self) -> None:
        client = self._scene.client()
        self._scene.listener(self.topic, self.group, client, endpoint=self._endpoint)
        self._clients[f"{self.name}-{len(self._clients)}"] = client

    def kill_client(self) -> None:
        """Kill a consumer while it handles messages, and start another consumer."""
        living = [name for name in self._clients if name not in self._killed]
        name = self._chance.choice(living)
        self._clients[name].kill()
        self._killed[name] = time.monotonic()
        self._listen()

    def _send(self) -> None:
        began = time.monotonic()
        for number in range(self._count):
            due = began + self._seconds * number / self._count
            if self._over.wait(max(due - time.monotonic(), 0)):
                return
            # The last messages are short ones: nothing is killed while they are handled.
            is_long = number < self._count * 0.8 and self._chance.randrange(LONG_ONE_OF) == 0
            work_ms = round(self._chance.uniform(*LONG_SECONDS) * 1000) if is_long else 0
            self._send_one(f"{self.name}-{number}", work_ms)

    def _send_one(self, body: str, work_ms: int) -> None:
        began = time.monotonic()
        while not self._over.is_set():
            try:
                self._sender.send(body, properties={"work_ms": str(work_ms)})
            except ClientGone as gone:
                self.faults.append(f"{self.name}: the producer is gone: {gone}"[:300])
                return
            except ClientFailed:
                self.failed_sends += 1
                self._over.wait(LOOK_SECONDS)
            else:
                self._sent[body] = began
                return

    def history(self, copies: dict[str, int], dead_letters: Sequence[str], lag: int) -> Group:
        """What happened, for the judge."""
        deliveries = []
        for name, client in self._clients.items():
            ends: dict[tuple[str, int], list[float]] = {}
            for each in client.events("worked"):
                ends.setdefault((each["id"], each["attempt"]), []).append(each["at"])
            for each in client.events("message"):
                own = ends.get((each["id"], each["attempt"]))
                end = own.pop(0) if own else None
                deliveries.append(
                    Delivery(each["body"], each["id"], each["attempt"], name, each["at"], end)
                )
        return Group(self.group, self._sent, copies, deliveries, self._killed, dead_letters, lag)

    def close(self) -> None:
        self._over.set()
        self._scene.close()
        self._sending.join()
