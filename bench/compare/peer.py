"""Interface of the compared message queues."""

import abc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.fetching import ROOT
from rockoon.local.ports import PortBlock


@dataclass(frozen=True)
class ClientCommand:
    """Command of a client that implements `clients/protocol.py`.

    Attributes:
        name: heading of its column in the table.
        command: program and arguments.
        environment: added to the environment of this process.
    """

    name: str
    command: Sequence[object]
    environment: Mapping[str, str] = field(default_factory=dict)


class Peer(abc.ABC):
    """A compared message queue. It is stopped before the next one is started.

    Args:
        ports: to listen on, on the loopback address.

    Attributes:
        name: of the peer.
        columns: names of its clients.
    """

    name: str
    columns: Sequence[str]

    def __init__(self, ports: PortBlock) -> None:
        self.ports = ports

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, str]:
        """Fetch and build its programs; return versions by name.

        Raises:
            NotHere: this machine cannot run it.
        """

    @abc.abstractmethod
    def start(self, folder: Path, *, sync: bool) -> str:
        """Start servers with an empty store, and return the address for clients.

        Args:
            folder: for their stores and logs.
            sync: True to sync messages to disk before they are acknowledged.
        """

    @abc.abstractmethod
    def pids(self) -> Sequence[int]:
        """Return the process ids of the servers."""

    @abc.abstractmethod
    def clients(self) -> Sequence[ClientCommand]:
        """Return its clients, after `prepare`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop all servers that were started; may be called again after an interruption."""


def python_client(name: str, python: Path | str, module: str) -> ClientCommand:
    environment = {"PYTHONPATH": str(ROOT)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += f":{os.environ['PYTHONPATH']}"
    return ClientCommand(name, [python, "-m", f"bench.compare.clients.{module}"], environment)
