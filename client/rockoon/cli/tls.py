"""TLS options of the command line, and their environment variables."""

import os
from typing import Annotated

import typer

TlsCa = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Use TLS; authorities that sign the servers (or ROCKOON_TLS_CA).",
    ),
]
TlsCertificate = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Our certificate, for mutual TLS (or ROCKOON_TLS_CERTIFICATE).",
    ),
]
TlsKey = Annotated[
    str,
    typer.Option(metavar="FILE", show_default=False, help="Its key (or ROCKOON_TLS_KEY)."),
]
TlsServerName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="What servers' certificates must bear, if not the host in their address "
        "(or ROCKOON_TLS_SERVER_NAME).",
    ),
]


def set_tls(ca: str, certificate: str, key: str, server_name: str) -> None:
    """Put what was given into the environment: `connect` looks there, and so does a command that
    this one starts."""
    given = {"CA": ca, "CERTIFICATE": certificate, "KEY": key, "SERVER_NAME": server_name}
    for name, value in given.items():
        if value:
            os.environ[f"ROCKOON_TLS_{name}"] = value
