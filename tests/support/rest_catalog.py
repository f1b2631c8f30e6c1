"""A catalogue of Iceberg tables over HTTP, as the REST protocol defines it.

It has namespaces, and tables that are created, loaded and committed. PyIceberg's own SQL catalogue
decides about commits and keeps the tables in a file of SQLite, so a server that is killed loses
nothing.

    python -m support.rest_catalog DIRECTORY PORT
"""

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

_STATUS = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


class Refused(Exception):
    """A hook refuses a commit with a status; 0 closes the connection without a reply."""

    def __init__(self, status: int) -> None:
        self.status = status


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections of clients that were killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class RestCatalogServer:
    """The server, in a thread or as a process.

    Args:
        directory: of the tables and of the file of the catalogue.
        port: 0 for a free one.
    """

    def __init__(self, directory: Path, port: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.catalog = SqlCatalog(
            "rest",
            uri=f"sqlite:///{directory}/catalog.db",
            warehouse=(directory / "warehouse").as_uri(),
        )
        self.before_commit: Callable[[str], None] = lambda _: None
        self.after_commit: Callable[[str], None] = lambda _: None
        """Called with the table's name; may raise Refused."""
        self.commits = 0
        self._lock = Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def _answer(self, method: str) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                path = self.path.partition("?")[0].removeprefix("/v1/")
                try:
                    status, content = 200, server.answer(method, path, body)
                except Refused as refusal:
                    if not refusal.status:
                        self.close_connection = True
                        self.connection.close()
                        return
                    status, content = refusal.status, error_json(refusal, refusal.status)
                except tuple(_STATUS) as error:
                    status = _STATUS[type(error)]
                    content = error_json(error, status)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self._server = _QuietServer(("127.0.0.1", port), Handler)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "RestCatalogServer":
        Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.catalog.engine.dispose()

    def serve(self) -> None:
        self._server.serve_forever(0.02)

    def answer(self, method: str, path: str, body: bytes) -> bytes:
        if path == "config":
            return b'{"defaults": {}, "overrides": {}}'
        parts = [unquote(part) for part in path.split("/")]
        namespace = tuple(parts[1].split("\x1f")) if len(parts) > 1 else ()
        if len(parts) == 1 and method == "POST":
            names = json.loads(body)["namespace"]
            self.catalog.create_namespace(tuple(names))
            return json.dumps({"namespace": names, "properties": {}}).encode()
        if len(parts) == 3 and method == "POST":
            return _loaded(self._create(namespace, json.loads(body)))
        assert len(parts) == 4, path
        name = (*namespace, parts[3])
        if method == "GET":
            return _loaded(self.catalog.load_table(name))
        return self._commit(name, body)

    def _create(self, namespace: tuple[str, ...], wanted: dict[str, Any]) -> Table:
        return self.catalog.create_table(
            (*namespace, wanted["name"]),
            Schema.model_validate(wanted["schema"]),
            partition_spec=PartitionSpec.model_validate(wanted["partition-spec"]),
            properties=wanted["properties"],
        )

    def _commit(self, name: tuple[str, ...], body: bytes) -> bytes:
        request = CommitTableRequest.model_validate_json(body)
        text = ".".join(name)
        self.before_commit(text)
        with self._lock:
            table = self.catalog.load_table(name)
            done = self.catalog.commit_table(table, request.requirements, request.updates)
            self.commits += 1
        self.after_commit(text)
        return done.model_dump_json(by_alias=True).encode()


def error_json(error: Exception, status: int) -> bytes:
    content = {"message": str(error), "type": type(error).__name__, "code": status}
    return json.dumps({"error": content}).encode()


def _loaded(table: Table) -> bytes:
    found = {"metadata-location": table.metadata_location, "config": {}}
    return json.dumps({**found, "metadata": json.loads(table.metadata.model_dump_json())}).encode()


if __name__ == "__main__":
    RestCatalogServer(Path(sys.argv[1]), int(sys.argv[2])).serve()
