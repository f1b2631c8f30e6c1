"""A real broker listens for this machine only."""

import re
from pathlib import Path

from rocketmq import real

LISTENS = "0A"
LOOPBACK = {"0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}


def test_nothing_of_it_can_be_reached_from_another_machine(tmp_path: Path) -> None:
    with real.running(tmp_path / "store") as broker:
        process = Path(f"/proc/{broker.pid}")
        targets = [str(each.readlink()) for each in (process / "fd").iterdir() if each.is_symlink()]
        inodes = {
            found[1] for each in targets if (found := re.fullmatch(r"socket:\[(\d+)\]", each))
        }
        listening = [
            fields[1].partition(":")[0]
            for name in ("tcp", "tcp6")
            for line in (process / "net" / name).read_text().splitlines()[1:]
            if (fields := line.split())[3] == LISTENS and fields[9] in inodes
        ]
        assert len(listening) >= 2, "a nameserver's and a broker's"
        assert set(listening) <= LOOPBACK
