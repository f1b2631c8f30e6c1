"""Interface of the compared message queues ("peers")."""

import abc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.fetching import ROOT
from rockoon.local.ports import PortBlock


@dataclass(frozen=True)
class ClientCommand:
    """Command line of a client program that implements `clients/protocol.py`.

    Attributes:
        name: heading of its column in the table.
        command: program and arguments.
        environment: added to the environment of this process.
    """

    name: str
    command: Sequence[object]
    environment: Mapping[str, str] = field(default_factory=dict)


class Peer(abc.ABC):
    """A compared message queue. Only one runs at a time.

    Args:
        ports: ports on which its servers listen, on the loopback address.

    Attributes:
        name: name of the message queue.
        columns: names of its client programs.
    """

    name: str
    columns: Sequence[str]

    def __init__(self, ports: PortBlock) -> None:
        self.ports = ports

    @abc.abstractmethod
    def prepare(self) -> Mapping[str, str]:
        """Fetch and build the programs; return their versions by name.

        Raises:
            NotHere: this machine cannot run the programs.
        """

    @abc.abstractmethod
    def start(self, folder: Path, *, sync: bool) -> str:
        """Start servers with an empty store, and return the address for clients.

        Args:
            folder: directory for stores and logs.
            sync: True to sync messages to disk before they are acknowledged.
        """

    @abc.abstractmethod
    def pids(self) -> Sequence[int]:
        """Return the process ids of the servers."""

    @abc.abstractmethod
    def clients(self) -> Sequence[ClientCommand]:
        """Return the client programs; call `prepare` before."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop all servers that were started; may be called again after an interruption."""


def python_client(name: str, python: Path | str, module: str) -> ClientCommand:
    environment = {"PYTHONPATH": str(ROOT)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += f":{os.environ['PYTHONPATH']}"
    return ClientCommand(name, [python, "-m", f"bench.compare.clients.{module}"], environment)
