"""A lease on an export's directory, for file systems without locks, such as object stores.

    _lease/9f2c11d0…    the claim of a job: {"host": …, "pid": …, "beat": 17, "waits": false}

The file system must list every file that was written before, as S3, GCS, ABFS and HDFS do, and
report when a file was written. Invariants:

- A job writes its claim before it lists the other claims, and works only if they have expired.
  If two jobs begin at the same time, at least one sees the other's claim and waits.
- A job renews its claim while it works. A claim expires if it was not renewed for the time of a
  lease. Both times, of the renewal and of the comparison, are those at which the file system wrote
  a claim: clocks of the jobs' machines, and pauses of a waiting job, have no effect.
- A job whose claim was removed publishes nothing: it was paused for longer than the lease.
"""

import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Protocol, Self

log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
"""How long a claim is valid after it was written."""
CLAIMS = "_lease"

_RENEWALS = 4
_ROUNDS_MAX = 8


class Directory(Protocol):
    """Operations of an export's directory that a lease uses; paths are relative to it."""

    def names(self, path: str) -> list[str]: ...

    def has(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, content: bytes) -> None: ...

    def remove(self, path: str) -> None: ...

    def make(self, path: str) -> None: ...

    def written_seconds(self, path: str) -> float: ...


class LeaseTaken(Exception):
    """Another job holds the directory."""


class LeaseLost(Exception):
    """Another job removed the claim of this job."""


class _Claim(NamedTuple):
    content: bytes
    written_seconds: float


class DirectoryLease:
    """A claim on a directory while entered; entering it waits until a dead job's claim expires.

    Args:
        directory: directory of the export.
        seconds: how long a claim is valid; the same for all jobs of a directory.

    Raises:
        LeaseTaken: on entering, another job renews its claim.
        OSError: on entering, the file system refuses.
    """

    def __init__(self, directory: Directory, seconds: float = LEASE_SECONDS) -> None:
        self._directory = directory
        self._seconds = seconds
        self._id = uuid.uuid4().hex
        self._beat = 0
        self._stopped = threading.Event()
        self._renewing = threading.Thread(
            target=self._renew, name="rockoon export lease", daemon=True
        )

    def __enter__(self) -> Self:
        self._directory.make(CLAIMS)
        try:
            self._acquire()
        except BaseException:
            self._remove(self._id)
            raise
        self._renewing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._renewing.join()
        self._remove(self._id)

    def check(self) -> None:
        """Check that this job's claim still exists, before something is published.

        Raises:
            LeaseLost: another job removed the claim, because it had expired.
        """
        if not self._directory.has(self._path(self._id)):
            raise LeaseLost(
                f"another job removed the claim of this one, because it was not renewed for"
                f" {self._seconds:g} s"
            )

    def _acquire(self) -> None:
        for _ in range(_ROUNDS_MAX):
            valid = self._valid(self._write())
            if not valid:
                return
            self._wait(valid)
            # A random delay, so that one of several jobs that waited for this claim is first.
            time.sleep(random.uniform(0, self._seconds / _RENEWALS / 4))
        raise LeaseTaken("other jobs begin at the same time")

    def _wait(self, watched: Mapping[str, _Claim]) -> None:
        """Wait until claims are gone or have expired.

        Raises:
            LeaseTaken: one was renewed.
        """
        while watched:
            now = self._write(waits=True)
            valid = self._valid(now)
            for name, claim in watched.items():
                if valid.get(name, claim).content != claim.content:
                    raise LeaseTaken(
                        f"another job works in this directory ({_holder(claim.content)})"
                    )
            watched = {name: claim for name, claim in watched.items() if name in valid}
            time.sleep(self._seconds / _RENEWALS / 4)

    def _valid(self, now: float) -> dict[str, _Claim]:
        """Return the valid claims of other jobs that do not wait, by id; remove expired claims."""
        found: dict[str, _Claim] = {}
        for name in self._directory.names(CLAIMS):
            if name == self._id:
                continue
            path = self._path(name)
            # It may be removed between the listing and the read. The time is read first: if the
            # claim is renewed in between, it counts as older, and `content` as changed.
            with suppress(FileNotFoundError):
                written = self._directory.written_seconds(path)
                claim = _Claim(self._directory.read(path), written)
                if now - written > self._seconds:
                    log.warning("removed an expired claim of an export: %s", _holder(claim.content))
                    self._remove(name)
                elif not _waits(claim.content):
                    found[name] = claim
        return found

    def _renew(self) -> None:
        while not self._stopped.wait(self._seconds / _RENEWALS):
            try:
                # A removed claim must not be written again: another job works by now.
                self.check()
                self._write()
            except LeaseLost:
                return
            except OSError as error:
                log.warning("the claim of an export was not renewed, will be retried: %s", error)

    def _write(self, *, waits: bool = False) -> float:
        """Write this job's claim; return the time, by the clock of the file system."""
        self._beat += 1
        claim = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "beat": self._beat,
            "waits": waits,
        }
        path = self._path(self._id)
        self._directory.write(path, json.dumps(claim).encode())
        return self._directory.written_seconds(path)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._directory.remove(self._path(name))

    @staticmethod
    def _path(name: str) -> str:
        return f"{CLAIMS}/{name}"


def _waits(claim: bytes) -> bool:
    # A claim that cannot be read is one that is being written.
    with suppress(ValueError, AttributeError):
        return bool(json.loads(claim).get("waits"))
    return False


def _holder(claim: bytes) -> str:
    try:
        content = json.loads(claim)
        return f"process {content['pid']} on {content['host']}"
    except (ValueError, KeyError, TypeError):
        return "its claim cannot be read"
