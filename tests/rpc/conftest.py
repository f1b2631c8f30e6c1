"""Sessions of both implementations, for tests of servers and channels."""

from types import ModuleType

import pytest

from rockoon_format import kernel
from rockoon_rpc import fallback, implementation

compiled: ModuleType | None = getattr(kernel.native, "http2", None)
IMPLEMENTATIONS = [each for each in (compiled, fallback) if each is not None]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda each: each.__name__.rpartition(".")[2])
def each_implementation(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """Has a test run on each implementation."""
    sessions: ModuleType = request.param
    monkeypatch.setattr(implementation, "implementation", lambda: sessions)
    return sessions
