"""The driver interface: what a comparison asks of each peer."""

import abc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.fetching import ROOT
from rockoon.local.ports import PortBlock


@dataclass(frozen=True)
class ClientCommand:
    """How a client of a peer is run: one that speaks as `clients/protocol.py` says.

    Attributes:
        name: heads its column in the table.
        command: program and arguments.
        environment: added to ours.
    """

    name: str
    command: Sequence[object]
    environment: Mapping[str, str] = field(default_factory=dict)


class Peer(abc.ABC):
    """A message queue beside others. One at a time is started, and stopped before the next.

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
        """Fetch and build what it needs; versions by name.

        Raises:
            NotHere: this machine cannot run it.
        """

    @abc.abstractmethod
    def start(self, folder: Path, *, sync: bool) -> str:
        """Start servers with an empty store, and return the address that clients are told.

        Args:
            folder: for their stores and logs.
            sync: whether what is answered is on disk.
        """

    @abc.abstractmethod
    def pids(self) -> Sequence[int]:
        """Processes of the servers."""

    @abc.abstractmethod
    def clients(self) -> Sequence[ClientCommand]:
        """Its clients, after `prepare`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the servers, whatever of them was started; again, if it was interrupted."""


def python_client(name: str, python: Path | str, module: str) -> ClientCommand:
    """A client in Python."""
    environment = {"PYTHONPATH": str(ROOT)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += f":{os.environ['PYTHONPATH']}"
    return ClientCommand(name, [python, "-m", f"bench.compare.clients.{module}"], environment)
