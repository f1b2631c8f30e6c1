"""Route stores: the interface through which the nameserver reads and writes routes.

Implementations are etcd (`etcd`) and a file of the nameserver's own (`embedded_store`); one
contract suite runs against both (tests/nameserver/test_route_store.py).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from rockoon_nameserver.etcd_data import (
    DeleteKey,
    Header,
    KeyCondition,
    KeyRange,
    KeyValue,
    PutKey,
    RangeRead,
    TransactionResult,
    WatchBatch,
)
from rockoon_runtime.telemetry.metrics import Times

# Histogram bounds, milliseconds: up to the longest that etcd's documents call healthy, and above.
REQUEST_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 1_000, 2_500, 5_000)


class Compacted(Exception):
    """The store no longer keeps the requested revision."""


class LeaseGone(Exception):
    """The lease has expired or was revoked."""


class RouteStore(Protocol):
    """Store of routes with etcd's semantics: keys with revisions, transactions, leases, a watch.

    Each call may raise EtcdUnavailable: a write that failed this way may have been applied. `Etcd`
    documents each call.

    Attributes:
        request_times: times of requests to a server, by request name and whether it replied.
    """

    @property
    def request_times(self) -> Mapping[tuple[str, bool], Times]: ...

    async def header(self) -> Header: ...

    async def versions(self) -> Mapping[str, str]: ...

    async def read(self, key_range: KeyRange) -> RangeRead: ...

    async def count_and_changes(
        self, key_range: KeyRange, after_revision: int
    ) -> tuple[Header, int, int]: ...

    async def read_at_once(self, *key_ranges: KeyRange) -> list[list[KeyValue]]: ...

    async def read_jointly(self, *key_ranges: KeyRange) -> tuple[Header, list[list[KeyValue]]]: ...

    async def transaction(
        self,
        conditions: Sequence[KeyCondition],
        operations: Sequence[PutKey | DeleteKey],
        otherwise: Sequence[KeyRange] = (),
    ) -> TransactionResult: ...

    async def grant_lease(self, ttl_seconds: int) -> tuple[int, float]: ...

    async def renew_lease(self, lease_id: int) -> float: ...

    async def lease_seconds_left(self, lease_id: int) -> float: ...

    async def revoke_lease(self, lease_id: int) -> None: ...

    def watch(
        self, key_range: KeyRange, start_revision: int
    ) -> AbstractAsyncContextManager[tuple[Header, AsyncIterator[WatchBatch]]]: ...
