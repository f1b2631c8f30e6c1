"""A lease on an export's directory, for file systems without locks, such as object stores.

    _lease/9f2c11d0…    the claim of a job: {"host": …, "pid": …, "beat": 17}

The file system must list every file that was written before, as S3, GCS, ABFS and HDFS do.
Invariants:

- A job writes its claim before it lists the other claims, and works only if there are none. If two
  jobs begin at the same time, at least one sees the other's claim and removes its own.
- A job renews its claim while it works. If a claim does not change for the time of a lease, its job
  counts as dead. The job that waited removes this claim, and writes its own claim after that.
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
from typing import Protocol, Self

log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
"""How long a claim may stay unchanged before its job counts as dead."""
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


class LeaseTaken(Exception):
    """Another job holds the directory."""


class LeaseLost(Exception):
    """Another job removed the claim of this job."""


class DirectoryLease:
    """A claim on a directory while entered; entering it waits for a lease's time if a job died.

    Args:
        directory: of the export.
        seconds: how long a claim may stay unchanged before its job counts as dead; the same for all
            jobs of a directory.

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
            LeaseLost: another job removed the claim, because it did not change.
        """
        if not self._directory.has(self._path(self._id)):
            raise LeaseLost(
                f"another job removed the claim of this one, because it did not change for"
                f" {self._seconds:g} s"
            )

    def _acquire(self) -> None:
        for _ in range(_ROUNDS_MAX):
            self._write()
            others = self._others()
            if not others:
                return
            self._remove(self._id)
            self._wait_stale(others)
            for each in others:
                self._remove(each)
            # A random delay, so that one of several jobs that waited for this claim is first.
            time.sleep(random.uniform(0, self._seconds / _RENEWALS / 4))
        raise LeaseTaken("other jobs begin at the same time")

    def _wait_stale(self, watched: Mapping[str, bytes]) -> None:
        """Wait until claims are gone, or have not changed for the time of a lease.

        Raises:
            LeaseTaken: one changed.
        """
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            time.sleep(self._seconds / _RENEWALS / 4)
            now = self._others()
            if not watched.keys() & now.keys():
                return
            for name, content in watched.items():
                if now.get(name, content) != content:
                    raise LeaseTaken(f"another job works in this directory ({_holder(content)})")

    def _others(self) -> dict[str, bytes]:
        """Return the claims of other jobs, by id."""
        found: dict[str, bytes] = {}
        for name in self._directory.names(CLAIMS):
            if name == self._id:
                continue
            # It may be removed between the listing and the read.
            with suppress(FileNotFoundError):
                found[name] = self._directory.read(self._path(name))
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

    def _write(self) -> None:
        self._beat += 1
        claim = {"host": socket.gethostname(), "pid": os.getpid(), "beat": self._beat}
        self._directory.write(self._path(self._id), json.dumps(claim).encode())

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._directory.remove(self._path(name))

    @staticmethod
    def _path(name: str) -> str:
        return f"{CLAIMS}/{name}"


def _holder(claim: bytes) -> str:
    try:
        content = json.loads(claim)
        return f"process {content['pid']} on {content['host']}"
    except (ValueError, KeyError, TypeError):
        return "its claim cannot be read"
