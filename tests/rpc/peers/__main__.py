"""`make grpc-peers`: gRPC's own clients against Rockoon's server, and Rockoon's channel against
servers of grpcio and grpc-go.

Each case is played with a client of each language; a language that the machine does not have is
skipped by name. Exit status 1 if a case fails that is no known fault of a peer (`KNOWN_FAULTS`).
With --write, docs/measurements/grpc-peers.md gets the table.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.compare.programs import NotHere
from rockoon.local.authority import Authority
from rpc.peers import page
from rpc.peers.cases import CASES, SLOW_PINGS, Case, play_known, running
from rpc.peers.languages import LANGUAGES, Program, environment, go, python, rockoon
from rpc.peers.targets import Target, of_go, start_grpcio, start_rockoon, within

BESIDE = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make grpc-peers", description=__doc__)
    parser.add_argument("--language", action="append", choices=list(LANGUAGES))
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument(
        "--write", action="store_true", help="write docs/measurements/grpc-peers.md"
    )
    parser.add_argument("--log", type=Path, help="append what client programs say about failures")
    return parser.parse_args()


def prepared(names: Sequence[str]) -> tuple[dict[str, Program], dict[str, str]]:
    """Programs that this machine can run, and for each other language the reason."""
    found: dict[str, Program] = {}
    skipped: dict[str, str] = {}
    for name in names:
        print(f"fetching gRPC's client for {name}", flush=True)
        try:
            found[name] = LANGUAGES[name]()
        except NotHere as reason:
            skipped[name] = str(reason)
            print(f"skipped: {name}: {reason}", flush=True)
    return found, skipped


async def play_all(
    program: Program, target: Target, cases: Sequence[Case], log: Path
) -> Mapping[str, str]:
    """Outcomes of cases, by their names."""
    outcomes: dict[str, str] = {}
    async with running(program.command, environment(), log) as client:
        for case in cases:
            outcomes[case.name] = await play_known(client, case, target, program.name, SLOW_PINGS)
            print(
                f"{program.name:8} {target.name:8} {case.name}: {outcomes[case.name]}", flush=True
            )
    return outcomes


async def play_pairs(
    clients: Sequence[Program], given: argparse.Namespace, folder: Path
) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Outcomes by names of client and server."""
    cases = [each for each in CASES if given.only in each.name]
    authority = Authority(folder / "authority")
    log = given.log or folder / "clients.log"
    outcomes: dict[tuple[str, str], Mapping[str, str]] = {}
    beside = asyncio.Semaphore(BESIDE)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(within("Rockoon", start_rockoon, authority))
        pairs = [(each, ours) for each in clients]
        if not given.language:
            theirs = [within("grpcio", start_grpcio, authority)]
            if any(each.name == "Go" for each in clients):
                theirs.append(of_go(go().command, authority))
            servers = [ours, *[await stack.enter_async_context(each) for each in theirs]]
            pairs += [(rockoon(), each) for each in servers]

        async def turn(client: Program, target: Target) -> None:
            async with beside:
                key = (client.name, target.name)
                outcomes[key] = await play_all(client, target, cases, log)

        async with asyncio.TaskGroup() as tasks:
            for client, target in pairs:
                tasks.create_task(turn(client, target))
    return {
        (client.name, target.name): outcomes[client.name, target.name] for client, target in pairs
    }


def main() -> int:
    given = arguments()
    programs, skipped = prepared(given.language or list(LANGUAGES))
    with tempfile.TemporaryDirectory() as folder:
        outcomes = asyncio.run(play_pairs(list(programs.values()), given, Path(folder)))
    versions = {each.name: each.version for each in programs.values()}
    versions |= {"grpcio": python().version, "grpc-go": versions.get("Go", "")}
    table = page.table(versions, outcomes)
    print(table)
    if given.write and not (given.only or given.language):
        page.write(table, skipped)
    failed = [
        f"{client}, server {server}: {case}: {said}"
        for (client, server), found in outcomes.items()
        for case, said in found.items()
        if said.startswith("failed")
    ]
    for sentence in failed:
        print(sentence)
    print(f"{sum(len(each) for each in outcomes.values())} cases, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
