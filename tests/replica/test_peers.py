"""A log that cannot be opened reads its damaged record from another copy."""

import zlib
from pathlib import Path
from typing import Any

from replica.test_copies import unanswered
from rockoon_core.channels import Channels
from rockoon_replica.log_copy import LogCopy
from rockoon_replica.peers import Peers
from rockoon_replica.replica_file import ReplicaFile
from rockoon_runtime.process import Stop
from support.eventually import eventually
from support.log_copies import LOG, copies


class Rewritten:
    """The closed log: written bytes by position."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}

    def rewrite(self, position: int, data: bytes) -> None:
        self.records[position] = data


async def test_a_closed_log_takes_no_record_that_the_other_copy_does_not_know_to_be_committed(
    tmp_path: Path,
) -> None:
    """A former leader has other records after its committed end, each with the right checksum."""
    async with copies(tmp_path, gated=False) as logs:
        former = await logs.start()
        begin = former.log.end
        end = await former.send(b"committed")
        await logs.equal(end)
        for follower in logs.followers(former):
            await follower.stop()
        await eventually(lambda: not former.is_leading)
        unanswered(former, b"on one disk only")

        channels, service = Channels(), Rewritten()
        peers = Peers(
            LOG, logs.cluster, channels, lambda _: former.target, lambda: ["a"], zlib.crc32
        )
        unused: Any = None
        parts: Any = (unused, unused, "b", unused, channels, service, unused)
        copy: LogCopy[Any] = LogCopy(*parts, ReplicaFile(tmp_path, former.disk), Stop())
        try:
            assert not await copy._rewrite_from(peers, end)
            assert await copy._rewrite_from(peers, begin) == "a"
        finally:
            await channels.close()
        assert service.records == {begin: former.log.read(begin, 1)}
