"""Certificates of callers, as gRPC's auth_context has them."""

import ssl
from collections.abc import Mapping
from typing import Any


def certificate_context(connection: ssl.SSLObject | None) -> Mapping[str, list[bytes]]:
    """gRPC's auth_context of a caller's certificate; empty without one.

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
