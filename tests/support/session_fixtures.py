"""Ends session fixtures of a directory after the last test of the directory in a process.

Otherwise their clusters, etcd and Spark would use the processor until all tests have ended.
"""

from collections.abc import Generator
from typing import Any

import pytest


class SessionFixtures:
    """Plugin of pytest. A conftest.py in a folder is not called for session fixtures."""

    def __init__(self) -> None:
        # Fixtures that are set up, by the directory of their conftest.py.
        self._of_directory: dict[str, list[tuple[pytest.FixtureDef[Any], Any]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "session" and fixturedef.baseid:
            self._of_directory.setdefault(fixturedef.baseid, []).append((fixturedef, request))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        yield
        for directory in list(self._of_directory):
            if nextitem is not None and not nextitem.nodeid.startswith(f"{directory}/"):
                for fixturedef, request in reversed(self._of_directory.pop(directory)):
                    fixturedef.finish(request)
