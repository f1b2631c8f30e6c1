"""The program that uses a connection, as services show it to operators."""

from functools import cache
from typing import NamedTuple

from rockoon_core.protocol import AGENT_METADATA_KEY
from rockoon_proto.v1.broker_pb2 import Agent as AgentOnWire

LANGUAGE = "PYTHON"
TEXT_BYTES_MAX = 255


class Agent(NamedTuple):
    """Language and version of a program's SDK. Both are empty for a gateway, whose clients have
    SDKs of their own.
    """

    client_id: str
    gateway: str = ""
    """Name of the gateway; empty for other programs."""

    @property
    def language(self) -> str:
        return "" if self.gateway else LANGUAGE

    @property
    def version(self) -> str:
        return "" if self.gateway else sdk_version()

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Return the metadata of a call whose broker shows the program."""
        agent = AgentOnWire(
            client_id=cut(self.client_id),
            language=self.language,
            version=self.version,
            gateway=cut(self.gateway),
        )
        return ((AGENT_METADATA_KEY, agent.SerializeToString()),)


@cache
def sdk_version() -> str:
    """Return the version of the package; empty if the package is not installed."""
    # Imported here: commands that only administer a cluster do not need it.
    from importlib import metadata

    try:
        return cut(metadata.version("rockoon"))
    except metadata.PackageNotFoundError:
        return ""


def cut(text: str) -> str:
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
