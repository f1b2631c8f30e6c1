"""The metrics page where connections are made that say nothing."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from rockoon_runtime.telemetry.prometheus import CONNECTIONS_MAX, bound_connections
from support.waiting import DEADLINE_SECONDS, wait_until


@pytest.fixture
def port() -> Iterator[int]:
    """Of a page with a bound."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=CollectorRegistry())
    bound_connections(server)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def scraped(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as page:
            return int(page.status) == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(DEADLINE_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_connections_that_say_nothing_are_bounded_and_cost_no_scrape_afterwards(port: int) -> None:
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)
        ]
        assert all(map(is_closed, silent[CONNECTIONS_MAX:]))
        assert not scraped(port)
    wait_until(lambda: scraped(port), "a scrape")


def test_connections_for_which_there_is_no_thread_cost_no_scrape_afterwards(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        for _ in range(CONNECTIONS_MAX):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                assert is_closed(connection)
    assert scraped(port)
