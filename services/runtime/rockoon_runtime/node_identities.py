"""Node identities: which node may bear which name, by its certificate (mutual TLS)."""

import re
from collections.abc import Sequence

from rockoon_core.errors import WrongIdentity

NAME_PLACE = "{name}"


class NodeIdentities:
    """A broker or offset service registers only under a name that its certificate bears.

    Args:
        pattern: what a certificate must bear, as common name or DNS name; `{name}` stands for the
            node's name and `*` for any text.

    Raises:
        ValueError: the pattern does not say `{name}`: every node could take any name.
    """

    def __init__(self, pattern: str) -> None:
        if NAME_PLACE not in pattern:
            raise ValueError(f"tls_node_name = {pattern!r} must contain {NAME_PLACE}")
        self._pattern = pattern

    def check(self, node_name: str, certificate_names: Sequence[str]) -> None:
        """See that a node may be called so.

        Args:
            node_name: the name it wants.
            certificate_names: those that its certificate bears.

        Raises:
            WrongIdentity: none of them allows it.
        """
        wanted = self._pattern.replace(NAME_PLACE, node_name)
        # Only the pattern's stars are stars: a node's name may come from anybody.
        parts = (
            re.escape(text.replace(NAME_PLACE, node_name)) for text in self._pattern.split("*")
        )
        allowed = re.compile(".*".join(parts))
        if not any(allowed.fullmatch(name) for name in certificate_names):
            raise WrongIdentity(
                identity=", ".join(certificate_names) or "nobody", name=node_name, wanted=wanted
            )
