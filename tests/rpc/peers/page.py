"""The page `docs/measurements/grpc-peers.md`: a table of clients, servers and cases."""

from collections.abc import Mapping

from bench.compare.programs import ROOT
from rpc.peers.cases import CASES, KNOWN_FAULTS, NOT_OFFERED

PAGE = ROOT / "docs" / "measurements" / "grpc-peers.md"
HEAD = """# gRPC's own clients and servers

`make grpc-peers WRITE=1` writes this page: clients of gRPC in four languages call Rockoon's server,
and Rockoon's channel calls servers of grpcio (Python) and grpc-go. `make test` runs the cases of
Python. Some cells show how many connections or pings the client used.

"""


def table(
    versions: Mapping[str, str], outcomes: Mapping[tuple[str, str], Mapping[str, str]]
) -> str:
    """A row for each case, a column for each pair of client and server."""
    pairs = list(outcomes)
    titles = [
        f"{client} {versions.get(client, '')}".strip()
        + (f" → {server} {versions.get(server, '')}".rstrip() if client == "Rockoon" else "")
        for client, server in pairs
    ]
    rows = ["| case | " + " | ".join(titles) + " |", "|---" * (len(pairs) + 1) + "|"]
    for case in CASES:
        found = [outcomes[pair].get(case.name, "") for pair in pairs]
        if any(found):
            cells = [each.removeprefix("ok ").replace("|", "/")[:200] for each in found]
            rows.append(f"| {case.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def write(found: str, skipped: Mapping[str, str]) -> None:
    notes = [f"- {language} is missing: {reason}" for language, reason in skipped.items()]
    faults = [
        f'- {server}\'s server, "{case}": {reason}'
        for (server, case), reason in KNOWN_FAULTS.items()
    ]
    parts = [f'- Rockoon\'s channel, "{case}": {reason}' for case, reason in NOT_OFFERED.items()]
    PAGE.write_text(
        HEAD
        + found
        + "\n\n## Cases that are not run\n\n"
        + "\n".join([*parts, *faults, *notes])
        + "\n"
    )
