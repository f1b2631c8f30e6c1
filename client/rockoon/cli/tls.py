"""TLS options of the command line, and the environment variables they set."""

import os
from typing import Annotated

import typer

TlsCa = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Use TLS; file with the CA certificates of the servers (or ROCKOON_TLS_CA).",
    ),
]
TlsCertificate = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Client certificate, for mutual TLS (or ROCKOON_TLS_CERTIFICATE).",
    ),
]
TlsKey = Annotated[
    str,
    typer.Option(metavar="FILE", show_default=False, help="Its private key (or ROCKOON_TLS_KEY)."),
]
TlsServerName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Name in the servers' certificates, if it is not the host of their address "
        "(or ROCKOON_TLS_SERVER_NAME).",
    ),
]


def set_tls(ca: str, certificate: str, key: str, server_name: str) -> None:
    """Set the environment variables that `connect` reads, also in processes that this command
    starts."""
    values = {"CA": ca, "CERTIFICATE": certificate, "KEY": key, "SERVER_NAME": server_name}
    for name, value in values.items():
        if value:
            os.environ[f"ROCKOON_TLS_{name}"] = value
