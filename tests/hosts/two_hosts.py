"""Two hosts; one sends to the other while some directions are cut, and again once healed.

python two_hosts.py [FROM:TO ...]

Prints the received messages of the two rounds. Started by `apart`. No wait for lost datagrams is
needed: datagrams do not overtake each other here, so a lost one is missing when the next one
arrives.
"""

import ctypes
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hosts.network import NAMES_FOLDER, Network

PORT = 5000
SECONDS_MAX = 30.0


def socket_on(network: Network, host: str) -> socket.socket:
    """A datagram socket of a host, made by a thread that has moved there."""
    made: list[socket.socket] = []

    def make() -> None:
        with open(f"{NAMES_FOLDER}/{host}") as namespace:
            if ctypes.CDLL(None).setns(namespace.fileno(), 0):
                return
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made[0].bind((network.addresses[host], PORT))
        made[0].settimeout(SECONDS_MAX)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def main(*cut: str) -> None:
    network = Network(["a", "b"])
    network.make()
    ends = {host: socket_on(network, host) for host in ("a", "b")}
    heard: dict[str, list[str]] = {"a": [], "b": []}

    def say(sender: str, receiver: str, what: str, *, is_lost: bool) -> None:
        ends[sender].sendto(what.encode(), (network.addresses[receiver], PORT))
        if not is_lost:
            heard[receiver].append(ends[receiver].recv(100).decode())

    directions = [(each[0], each[-1]) for each in cut]
    network.cut(directions)
    say("a", "b", "first", is_lost=("a", "b") in directions)
    say("b", "a", "first", is_lost=("b", "a") in directions)
    network.heal(directions)
    say("a", "b", "second", is_lost=False)
    say("b", "a", "second", is_lost=False)
    for host, words in heard.items():
        print(host, *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
