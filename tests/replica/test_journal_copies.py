"""Copies of an offset service's journal over real streams: equal bytes, and equal ledgers."""

from pathlib import Path

import pytest

from rockoon_core.disk import Disk
from rockoon_offset.journal.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from rockoon_offset.journal.journal_files import generations, journal_path
from rockoon_offset.journal.journal_log import JournalLog
from rockoon_replica import copy_check
from support.eventually import eventually
from support.journal_logs import append, content, former, state_of
from support.log_copies import copies

FILE_BYTES = 4000


class JournalCopy(JournalLog):
    """A journal with additional methods for tests."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.directory = root / "log"
        self.directory.mkdir(exist_ok=True)
        self.failures: list[OSError] = []
        super().__init__(
            self.directory,
            root.name,
            failed=self.failures.append,
            disk=disk,
            bytes_max=FILE_BYTES,
        )

    def append(self, payload: bytes) -> int:
        if self.wants_generation:
            self.start_generation()
        self.append_state()
        return append(self, f"g{len(payload) % 5}", len(payload))

    def content(self) -> bytes:
        return content(self)


async def test_journals_stay_equal_through_catch_up_cuts_and_changes_of_leader(
    tmp_path: Path,
) -> None:
    async with copies(tmp_path, gated=False, open_log=JournalCopy) as logs:
        first = await logs.start()
        # Over some files.
        end = await first.send(*(bytes(number) for number in range(100)))
        await logs.equal(end)
        assert len(generations(first.log.directory, "journal")) > 2
        followers = logs.followers(first)
        for follower in followers:
            await follower.stop()
        await eventually(lambda: not first.is_leading)
        # On one disk only.
        append(first.log, "lost", 1)
        first.replica.written()
        await eventually(lambda: first.log.durable_end == first.log.end)
        await first.stop()
        for follower in followers:
            await follower.start()
        second = await logs.leader(other_than=first)
        await second.send(b"kept")
        await first.start()
        end = await second.send(b"last!!")
        await logs.equal(end)
        states = [state_of(copy.log) for copy in logs.all.values()]
        assert states[0] == states[1] == states[2]
        assert "lost" not in set(second.log.ledger.table.readers())
        files = [
            [journal_path(copy.log.directory, each).read_bytes()[40:] for each in found]
            for copy in logs.all.values()
            if (found := generations(copy.log.directory, "journal"))
        ]
        assert files[0] == files[1] == files[2]
        assert not any(copy.log.failures for copy in logs.all.values())


@pytest.mark.parametrize("damaged", ["leader", "follower"])
async def test_a_bit_flips_in_a_journal_and_another_copy_restarts(
    tmp_path: Path, damaged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_check, "PAUSE_SECONDS", 0.05)
    async with copies(tmp_path, gated=False, open_log=JournalCopy) as logs:
        logs.scrub_bytes_per_second = 64 << 20
        leader = await logs.start()
        await logs.equal(await leader.send(*(bytes(number) for number in range(20))))
        follower = logs.followers(leader)[0]
        copy, other = (leader, follower) if damaged == "leader" else (follower, leader)
        newest = generations(copy.log.directory, "journal")[-1]
        with journal_path(copy.log.directory, newest).open("r+b") as file:
            # Of the record of an epoch, with which a file begins.
            file.seek(FILE_HEADER_BYTES + FRAME_HEADER_BYTES)
            byte = file.read(1)[0]
            file.seek(FILE_HEADER_BYTES + FRAME_HEADER_BYTES)
            file.write(bytes([byte ^ 1]))
        await other.stop()
        await other.start()
        await logs.equal(await (await logs.leader()).send(b"one more"))
        facts = [each.replica.member.facts for each in logs.all.values()]
        assert all(each.sound and not each.damaged for each in facts)
        assert len({str(state_of(each.log)) for each in logs.all.values()}) == 1


async def test_a_journal_of_one_copy_is_copied_with_all_it_had(tmp_path: Path) -> None:
    async with copies(tmp_path, gated=False, open_log=JournalCopy) as logs:
        before = former("later", tmp_path / "a" / "log")
        first = await logs.start()
        assert first.name == "a"
        await logs.equal(first.log.end)
        for copy in logs.all.values():
            assert state_of(copy.log) == before
        # A copy that returns later, with the log that it has.
        follower = logs.followers(first)[0]
        await follower.stop()
        end = await first.send(b"one", b"seven..")
        await follower.start()
        await logs.equal(end)
        assert state_of(follower.log) == state_of(first.log)
