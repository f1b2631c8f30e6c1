"""Whom this process talks to, as the system knows it."""

import os
import socket
import struct
from collections import Counter
from pathlib import Path


def own_connections() -> Counter[str]:
    """How many TCP connections of this process have which far end, "host:port".

    Linux only: IPv4, and IPv6 sockets that carry it.
    """
    own = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    found: Counter[str] = Counter()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" not in own:
                continue
            address, _, port = fields[2].partition(":")
            # The last four bytes are the IPv4 address, in the machine's order.
            packed = struct.pack("=I", int(address[-8:], 16))
            found[f"{socket.inet_ntoa(packed)}:{int(port, 16)}"] += 1
    return found
