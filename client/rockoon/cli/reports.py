"""`rockoon status`, `lag` and `top`: reports about the whole cluster, once or until Ctrl-C."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rockoon.cli.arguments import WATCH, WATCH_SECONDS, check_watch_seconds, parse_duration
from rockoon.cli.failures import FAILED, complain
from rockoon.cli.session import DEFAULT_NAMESERVERS, AsJson, Nameservers, with_admin, with_cluster

if TYPE_CHECKING:
    from rockoon.cli.watch import WatchedReport
    from rockoon.cluster import Cluster


def status(as_json: AsJson = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Show every node; exit status 1 if one is unhealthy."""
    from rockoon.cli.output import print_json
    from rockoon.cli.status import show_status, status_json

    found = with_admin(nameservers, lambda admin: admin.status())
    if as_json:
        print_json(status_json(found))
    else:
        show_status(found)
    raise typer.Exit(0 if found.healthy else FAILED)


LagGroup = Annotated[
    str,
    typer.Argument(metavar="[GROUP]", show_default=False, help="Only this group, by queue."),
]
LagTopic = Annotated[
    str, typer.Argument(metavar="[TOPIC]", show_default=False, help="Only this topic.")
]
LossBound = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Exit with status 1 if retention may delete unread messages within this time (2h), or "
        "if that cannot be determined.",
    ),
]
RowsMax = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Show at most N groups.  [default: 100]"),
]
WatchSeconds = Annotated[
    float | None,
    typer.Option(
        WATCH,
        metavar="[SECONDS]",
        callback=check_watch_seconds,
        help=f"Repeat every {WATCH_SECONDS} (or SECONDS) seconds, until Ctrl-C.",
    ),
]


def lag(
    group: LagGroup = "",
    topic: LagTopic = "",
    fail_if_loss_within: LossBound = None,
    limit: RowsMax = None,
    watch_seconds: WatchSeconds = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show lag, and when retention deletes unread messages; the most urgent first.

    Without GROUP: one row for each group. With GROUP: one row for each of its queues.

    A broker never deletes its newest CommitLog file. For messages in that file, the time is
    calculated as if the broker started a new file now.
    """
    from rockoon.cli.lag import report_group, report_groups, rows_that_fit
    from rockoon.cli.watch import print_report, watch

    bound_ms = None if fail_if_loss_within is None else parse_duration(fail_if_loss_within)
    if group and limit is not None:
        raise typer.BadParameter("it cannot be combined with GROUP", param_hint="--limit")
    rows_max = limit or rows_that_fit(is_watch=watch_seconds is not None and not as_json)

    async def ask(cluster: "Cluster") -> "WatchedReport":
        if group:
            return await report_group(cluster, group, topic, bound_ms)
        return await report_groups(cluster, rows_max, bound_ms)

    async def watch_lag(cluster: "Cluster", seconds: float) -> str:
        return await watch(cluster, ask, seconds=seconds, as_json=as_json)

    if watch_seconds is not None:
        danger = with_cluster(nameservers, partial(watch_lag, seconds=watch_seconds))
    else:
        report = with_cluster(nameservers, ask)
        print_report(report, as_json=as_json)
        danger = report.danger
    if danger:
        raise typer.Exit(complain(danger))


Once = Annotated[
    bool, typer.Option("--once", help="Print one report, after one interval, and end.")
]
Interval = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        callback=check_watch_seconds,
        help="Time between two samples. Rates are of the last 10 s, or of one longer interval.",
    ),
]
SystemTopics = Annotated[
    bool, typer.Option("--all", help="Also %RETRY%..., %DLQ%... and %LITE%... topics at rest.")
]
LinesMax = Annotated[
    int | None,
    typer.Option(
        "--limit", min=1, metavar="N", help="Show about N lines (default: that fit, else 100)."
    ),
]


def top(
    topic: LagTopic = "",
    once: Once = False,
    interval: Interval = 2.0,
    with_system: SystemTopics = False,
    limit: LinesMax = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Show messages per second of topics and groups, with lag, the busiest first, until Ctrl-C.

    Consumers commit every 5 seconds by default, so the rate of a group over a shorter time has
    steps.
    """
    import asyncio

    from rockoon.cli.lag import rows_that_fit
    from rockoon.cli.top import Sampler
    from rockoon.cli.watch import print_report, watch

    rows_max = limit or rows_that_fit(is_watch=not (once or as_json))
    sampler = Sampler(topic, rows_max=rows_max, with_system=with_system)

    async def show_once(cluster: "Cluster") -> "WatchedReport":
        await sampler.report(cluster)
        await asyncio.sleep(interval)
        return await sampler.report(cluster)

    async def show(cluster: "Cluster") -> str:
        return await watch(cluster, sampler.report, seconds=interval, as_json=as_json)

    if once:
        print_report(with_cluster(nameservers, show_once), as_json=as_json)
    else:
        with_cluster(nameservers, show)
