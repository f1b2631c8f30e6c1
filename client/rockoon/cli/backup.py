"""`rockoon backup`: copies a running cluster, and restores the copy into a new cluster.

`create` needs the permission cluster=admin; the other commands read and write files.
"""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.failures import CommandError
from rockoon.cli.output import for_humans, local_time, picked, print_json, print_table
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, Yes, confirm, with_cluster

if TYPE_CHECKING:
    from rockoon.backup.destination import Destination
    from rockoon.backup.manifest import BackupManifest, Backups
    from rockoon.backup.restoring import GroupOffset, RestoreReport
    from rockoon.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Back up a running cluster, and restore it.")

Place = Annotated[
    str,
    typer.Argument(metavar="DESTINATION", help="Directory, or URI such as s3://bucket/backups."),
]
MaybeBackup = Annotated[
    str, typer.Argument(metavar="[BACKUP]", show_default=False, help="Default: the newest one.")
]
MIB = 1 << 20


def open_backups(destination: str) -> "tuple[Destination, Backups]":
    """Return an existing destination and its backups. Raises BackupError."""
    from rockoon.backup.destination import open_destination
    from rockoon.backup.manifest import Backups

    place = open_destination(destination, existing=True)
    return place, Backups(place, place.names())


@app.command()
def create(
    destination: Place,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="BROKER", help="Leave a broker out. Repeatable."),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", metavar="MIB", min=0, help="MiB per second; 0: no limit.")
    ] = 0.0,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Copy logs, progress and routes while the cluster runs; later backups copy new records."""
    from rockoon.backup.creation import create as create_backup
    from rockoon.backup.destination import open_destination

    async def work(cluster: "Cluster") -> "BackupManifest":
        return await create_backup(
            cluster,
            open_destination(destination),
            without=without or (),
            bytes_per_second=rate * MIB,
            report=(lambda _: None) if as_json else print,
            warn=lambda text: print(f"rockoon: {text}", file=sys.stderr),
        )

    manifest = with_cluster(nameservers, work)
    if as_json:
        print_json(backup_json(manifest))
    else:
        print(f"backup {manifest.backup} is complete: {for_humans(manifest.bytes)}")


@app.command("list")
def list_backups(destination: Place, as_json: AsJson = False) -> None:
    """List backups with their states."""
    from rockoon.backup.destination import BackupError

    found, damaged = [], []
    place, backups = open_backups(destination)
    for each in backups.complete:
        try:
            found.append(backups.manifest(each))
        except BackupError:
            damaged.append(each)
    if as_json:
        print_json(
            {
                "backups": [backup_json(each) for each in found],
                "interrupted": backups.interrupted,
                "unreadable": damaged,
            }
        )
        return
    rows: list[tuple[Any, ...]] = [
        (
            each.backup,
            "complete",
            local_time(each.progress_ms),
            for_humans(each.bytes),
            ", ".join(log.name for log in each.logs),
        )
        for each in found
    ]
    rows += [(each, "INTERRUPTED", None, None, None) for each in backups.interrupted]
    rows += [(each, "UNREADABLE: verify", None, None, None) for each in damaged]
    print_table(
        ("BACKUP", "STATE", "PROGRESS OF", "SIZE", "LOGS"),
        sorted(rows),
        empty=f"there is no backup in {place.shown}",
    )


@app.command()
def verify(destination: Place, backup: MaybeBackup = "") -> None:
    """Read every file of a backup, and compare it with its checksum."""
    from rockoon.backup.restoring import faults

    place, backups = open_backups(destination)
    manifest = backups.manifest(backup)
    found = list(faults(place, manifest))
    for fault in found:
        print(fault)
    if found:
        raise CommandError(f"backup {manifest.backup} is damaged: {len(found)} files")
    print(f"backup {manifest.backup} is intact: {for_humans(manifest.bytes)}")


@app.command()
def prune(
    destination: Place,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="Keep the N newest backups.")
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option("--keep-days", metavar="DAYS", min=0, help="Keep backups of the last days."),
    ] = None,
    interrupted: Annotated[
        bool,
        typer.Option("--interrupted", help="Remove interrupted backups too; none may be running."),
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only print; remove nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove old backups, and the files that no other backup needs."""
    from rockoon.backup.pruning import prune as prune_backups

    if keep is None and keep_days is None:
        raise CommandError("nothing was removed: give --keep, --keep-days, or both")
    place, backups = open_backups(destination)
    if not backups.complete and not backups.interrupted:
        raise CommandError(f"{place.shown} has no backup")
    chosen = partial(
        prune_backups,
        place,
        keep=keep or 0,
        keep_days=keep_days or 0.0,
        with_interrupted=interrupted,
    )
    found = chosen(plan=True)
    if found.files and not plan:
        count = len(found.removed) + len(found.interrupted)
        confirm(f"Remove {count} backups from {place.shown}?", yes=yes)
        found = chosen()
    if as_json:
        print_json(asdict(found))
        return
    for each in (*found.removed, *found.interrupted):
        print(f"{'to be removed' if plan else 'removed'}: {each}")
    print(f"{found.files} files, {for_humans(found.bytes)}; {len(found.kept)} backups are kept")
    for each in found.left:
        print(f"backup {each} began or ended meanwhile: the next `backup prune` removes the files")


@app.command()
def restore(
    destination: Place,
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="New directory for stores and routes.")
    ],
    backup: Annotated[
        str,
        typer.Option(
            "--backup",
            metavar="BACKUP",
            help="Default: the one of the unfinished restore in DIRECTORY, or the newest one.",
        ),
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this log, offset or routes. Repeatable."),
    ] = None,
    progress_of: Annotated[
        str, typer.Option("--progress-of", metavar="BACKUP", help="Progress of another backup.")
    ] = "",
    routes_of: Annotated[
        str, typer.Option("--routes-of", metavar="BACKUP", help="Routes of another backup.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write the stores of brokers and offset service, and the routes, for a new cluster."""
    from rockoon.backup.restoring import Restore, RestoreSources, read_unfinished

    place, backups = open_backups(destination)
    if (unfinished := read_unfinished(directory)) is not None:
        for each in unfinished.backups:
            if each not in backups.complete:
                raise CommandError(
                    f"{directory} has an unfinished restore of backup {each}, which was "
                    "removed: restore into a new directory"
                )
        backup = backup or unfinished.backups[0]
    logs = backups.manifest(backup)
    progress, routes = (
        backups.manifest(each) if each else logs for each in (progress_of, routes_of)
    )
    sources = RestoreSources(logs, progress, routes)
    tell = (lambda _: None) if as_json else print
    report = Restore(place, sources, directory, tell).run(only or ())
    if as_json:
        print_json(asdict(report))
    else:
        show_report(report, directory)


def show_report(report: "RestoreReport", directory: Path) -> None:
    print(f"restored {', '.join(report.restored)} to {directory}")
    show_groups(report.groups)


def show_groups(offsets: "Iterable[GroupOffset]") -> None:
    """Print the gaps of each group, and for groups without a gap that they have none."""
    groups: dict[str, list[GroupOffset]] = {}
    for each in offsets:
        groups.setdefault(each.group, []).append(each)
    for group, found in sorted(groups.items()):
        gaps = [each for each in found if each.has_gap]
        behind = sum(max(0, (each.end or 0) - each.offset) for each in found)
        state = f"{len(gaps)} queues have a gap" if gaps else "no gap"
        print(f"group {group}: {state}; {behind} messages to read")
        for each in gaps:
            member = f" of member {each.member}" if each.member else ""
            text = f"  {each.topic}@{each.broker}:{each.queue_id}{member}: "
            if each.before != each.offset:
                text += f"from {each.before} back to {each.offset}, the "
                text += "end of the queue" if each.offset == each.end else "start of a new topic"
            if each.deleted:
                text += f"{each.deleted} messages from {each.offset} on had been deleted"
            print(text)


def backup_json(manifest: "BackupManifest") -> dict[str, Any]:
    return {
        **picked(manifest, "backup", "cluster"),
        "cluster_id": f"{manifest.cluster_id:016x}",
        **picked(manifest, "version", "begun_ms", "finished_ms", "progress_ms", "routes_ms"),
        **picked(manifest, "revision", "bytes"),
        "without": list(manifest.without),
        "logs": [
            {"log": log.name, **picked(log, "begin", "end", "cut_ms")} for log in manifest.logs
        ],
    }
