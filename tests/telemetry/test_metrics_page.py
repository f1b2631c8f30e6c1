"""The metrics page where connections are made that say nothing."""

import contextlib
import socket
import urllib.error
import urllib.request

from prometheus_client import CollectorRegistry, start_http_server

from rockoon_runtime.telemetry.prometheus import CONNECTIONS_MAX, bound_connections
from support.waiting import DEADLINE_SECONDS, wait_until


def test_connections_that_say_nothing_are_bounded_and_cost_no_scrape_afterwards() -> None:
    server, thread = start_http_server(0, addr="127.0.0.1", registry=CollectorRegistry())
    bound_connections(server)
    address = ("127.0.0.1", server.server_port)

    def scraped() -> bool:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as page:
                return int(page.status) == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(address)) for _ in range(40)]
            for connection in silent[CONNECTIONS_MAX:]:
                connection.settimeout(DEADLINE_SECONDS)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b"", "it is still open"
            assert not scraped()
        wait_until(scraped, "a scrape")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
