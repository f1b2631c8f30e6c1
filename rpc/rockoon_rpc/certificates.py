"""Conversion of callers' TLS certificates to gRPC's `auth_context`."""

import ssl
from collections.abc import Mapping
from typing import Any


def certificate_context(connection: ssl.SSLObject | None) -> Mapping[str, list[bytes]]:
    """Return the `auth_context` for a caller's certificate; empty if the caller sent none.

    Args:
        connection: of TLS; None for a plain connection.
    """
    certificate = None if connection is None else connection.getpeercert()
    if not certificate or connection is None:
        return {}
    der = connection.getpeercert(binary_form=True)
    assert der is not None
    subject: Any = certificate.get("subject", ())
    alternatives: Any = certificate.get("subjectAltName", ())
    return {
        "x509_pem_cert": [ssl.DER_cert_to_PEM_cert(der).encode()],
        "x509_common_name": [
            value.encode() for part in subject for name, value in part if name == "commonName"
        ],
        "peer_dns": [value.encode() for kind, value in alternatives if kind == "DNS"],
    }
