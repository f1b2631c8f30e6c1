"""Commands for a cluster that does not work: `rockoon doctor`, `rockoon support bundle`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rockoon.cli.failures import FAILED, CommandError
from rockoon.cli.output import counted, print_json_line
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers

CertificateDays = Annotated[
    int,
    typer.Option(
        min=0, max=36_525, metavar="DAYS", help="Warn of certificates that end within this time."
    ),
]
SettingsFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--settings",
        metavar="SERVICE=FILE",
        help="Settings file of a service on this machine: broker=/etc/rockoon/broker.toml. "
        "Repeatable.",
    ),
]


def doctor(
    settings: SettingsFiles = None,
    certificate_days: CertificateDays = 30,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Check this machine and the cluster: one line per check; exit status 1 if one is FAIL.

    Checked are versions, clocks, disks, limits, ports, names, etcd, nodes, and certificates.
    """
    from rockoon.cli.doctor import FAIL, all_checks
    from rockoon.cli.service_settings import read_settings

    failed = False
    services = [read_settings(each) for each in settings or ()]
    for each in all_checks(nameservers, services, certificate_days):
        failed = failed or each.state == FAIL
        if as_json:
            print_json_line(asdict(each))
        else:
            print(each, flush=True)
    raise typer.Exit(FAILED if failed else 0)


support_app = typer.Typer(no_args_is_help=True, help="Collect data for a report of a problem.")
BundleFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Default: rockoon-support-TIME.tar.gz here."),
]
LogFiles = Annotated[
    list[Path] | None,
    typer.Option("--log", metavar="FILE", help="Log file; its last 4 MiB. Repeatable."),
]
MetricsPages = Annotated[
    list[str] | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Metrics page of a service. Repeatable."),
]
ClusterDirectory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Directory of `rockoon up`, for all of its logs."),
]


@support_app.command("bundle")
def support_bundle(
    output: BundleFile = None,
    settings: SettingsFiles = None,
    logs: LogFiles = None,
    metrics: MetricsPages = None,
    directory: ClusterDirectory = None,
    certificate_days: CertificateDays = 30,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Write versions, settings, status, checks, metrics and logs to a file, without secrets.

    Secrets of settings, environment, secret files and addresses are replaced by ***. Log lines
    contain names of topics, groups and hosts, and may contain keys of messages.
    """
    from rockoon.cli.service_settings import read_settings
    from rockoon.cli.support import Sources, collect, default_name
    from rockoon_core.clock import wall_clock_ms

    services = [read_settings(each) for each in settings or ()]
    path = output or Path(default_name(wall_clock_ms()))
    if path.exists():
        raise CommandError(f"{path} exists: name another file with --output")
    sources = Sources(nameservers, services, logs or (), metrics or (), directory, os.environ)
    bundle = collect(sources, certificate_days)
    try:
        bundle.write(path, wall_clock_ms())
    except OSError as failure:
        raise CommandError(
            f"{path} cannot be written: {failure.strerror}; make room, or name a file on another "
            "disk with --output"
        ) from failure
    print(f"{path}: {counted(len(bundle.files), 'file')}; read it before you send it")
    for sentence in bundle.missing:
        print(f"missing: {sentence}")
