"""Node identities: the node names that a certificate permits (mutual TLS)."""

import re
from collections.abc import Sequence

from rockoon_core.errors import WrongIdentity

NAME_PLACE = "{name}"


class NodeIdentities:
    """Permits a broker or offset service to register only under a name in its certificate.

    Args:
        pattern: required common name or DNS name of the certificate; `{name}` is replaced by the
            node's name, and `*` matches any text.

    Raises:
        ValueError: the pattern has no `{name}`, so every node could use any name.
    """

    def __init__(self, pattern: str) -> None:
        if NAME_PLACE not in pattern:
            raise ValueError(f"tls_node_name = {pattern!r} must contain {NAME_PLACE}")
        self._pattern = pattern

    def check(self, node_name: str, certificate_names: Sequence[str]) -> None:
        """Check that a node may use a name.

        Args:
            node_name: the requested name.
            certificate_names: the names in its certificate.

        Raises:
            WrongIdentity: no name of the certificate permits it.
        """
        wanted = self._pattern.replace(NAME_PLACE, node_name)
        # Only the stars of the pattern are wildcards: any client can send a node name.
        parts = (
            re.escape(text.replace(NAME_PLACE, node_name)) for text in self._pattern.split("*")
        )
        allowed = re.compile(".*".join(parts))
        if not any(allowed.fullmatch(name) for name in certificate_names):
            raise WrongIdentity(
                identity=", ".join(certificate_names) or "nobody", name=node_name, wanted=wanted
            )
