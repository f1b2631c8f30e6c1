"""Actions of the commands: each runs a job with the parsed options and returns an `Outcome`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

from pyspark.sql import SparkSession

from rockoon_core.valid_text import redacted
from rockoon_format.generation import GenerationError
from rockoon_spark.broker_calls import live_addresses
from rockoon_spark.commands.outcomes import Outcome
from rockoon_spark.compaction.broker_target import broker_targets
from rockoon_spark.compaction.directory_target import DirectoryTarget
from rockoon_spark.compaction.exchange import CompactionTarget
from rockoon_spark.compaction.sources import CompactionError
from rockoon_spark.export.rows import ExportError, TopicChoice, gap_text
from rockoon_spark.export.target import ExportTarget, ExportTargetError, is_export
from rockoon_spark.files import list_log
from rockoon_spark.index.target import (
    IndexTargetError,
    index_paths,
    manifest_path,
    read_manifest,
)
from rockoon_spark.jobs import compact as compaction
from rockoon_spark.jobs.compact import generation_directory, verify_generation
from rockoon_spark.jobs.export import export as export_log
from rockoon_spark.jobs.index import IndexBuildError, build_index, verify_index
from rockoon_spark.jobs.rebuild import QueueDisorder, queue_files, rebuild_queues, verify_queues
from rockoon_spark.jobs.verify_export import verify_export
from rockoon_spark.object_stores import StoreReadError
from rockoon_spark.publish import TargetExists
from rockoon_spark.records.record_run import LogBroken
from rockoon_spark.source.live_cluster import LiveCluster, LogUnreadable
from rockoon_spark.source.log_source import (
    BrokerAway,
    LogSource,
)
from rockoon_spark.source.store_directory import StoreDirectory
from rockoon_spark.stream.group_progress import GroupInUse

_READ = {"log_bytes": "bytes of the log read", "end_offset": "up to physical offset"}
_INDEX = {**_READ, "keys": "keys added", "files": "files now"}
_REBUILT = {**_READ, "entries": "entries written", "queues": "queues", "files": "files written"}
_COMPACTED = {
    **_READ,
    "former_bytes": "bytes of the former generation read",
    "records": "records read",
    "keys": "keys found",
    "keyless": "records without a key",
    "bytes_written": "bytes of files written",
    "bytes_linked": "bytes of files linked",
    "shuffle_bytes": "bytes handed from task to task",
    "log_end": "up to physical offset",
}
_EXPORTED = {
    **_READ,
    "messages": "messages written",
    "files": "files written",
    "bytes": "bytes written",
    "run": "last run",
    "merged": "small files merged",
}


class Unusable(Exception):
    """An option names a directory or an address that the command cannot use."""


EXPECTED = (
    BrokerAway,
    CompactionError,
    ExportError,
    ExportTargetError,
    GenerationError,
    GroupInUse,
    IndexBuildError,
    IndexTargetError,
    LogBroken,
    LogUnreadable,
    QueueDisorder,
    StoreReadError,
    TargetExists,
    Unusable,
)
"""Errors that a command reports as one sentence, without a stack trace."""


def refuse_unusable(options: Any) -> None:
    """Check the store, endpoint and target before Spark starts, which needs seconds.

    Raises:
        StoreReadError: the store directory is not a store.
        RockoonError: no nameserver answers at the endpoint.
        Unusable: the target is not a local directory, although the command needs one.
    """
    if options.store:
        list_log(options.store)
    elif options.endpoint:
        live_addresses(options.endpoint)
    if options.command in ("index", "rebuild"):
        _directory(options)


def index(spark: SparkSession, options: Any) -> Outcome:
    report = build_index(
        spark,
        _one_log(options),
        _directory(options),
        slots=options.slots,
        units=options.units,
        sealed_only=not options.whole,
    )
    return Outcome(asdict(report), notes=_left_out(options, report.log_bytes), labels=_INDEX)


def rebuild(spark: SparkSession, options: Any) -> Outcome:
    report = rebuild_queues(
        spark, _one_log(options), _directory(options), file_entries=options.entries
    )
    return Outcome(asdict(report), labels=_REBUILT)


def compact(spark: SparkSession, options: Any) -> Outcome:
    reports, problems = [], []
    for target in _targets(options):
        # If the compaction of one broker fails, the next brokers are still compacted.
        try:
            report = compaction.compact(
                spark,
                target,
                min_lag_seconds=options.min_lag_seconds,
                min_dirty_ratio=options.min_dirty_ratio,
                max_lag_seconds=options.max_lag_seconds,
                rewrites=options.rewrite,
            )
        except CompactionError as error:
            problems.append(str(error))
        else:
            reports.append(report)
    return _compacted(reports, problems)


def _targets(options: Any) -> Sequence[CompactionTarget]:
    if options.endpoint is None:
        return [DirectoryTarget(_path(options.store))]
    return broker_targets(options.endpoint, options.broker)


def _compacted(
    reports: Sequence[compaction.CompactReport], problems: Sequence[str] = ()
) -> Outcome:
    """Return the figures of a job for each broker, and the total of log bytes read."""
    figures: dict[str, Any] = {"log_bytes": sum(report.log_bytes for report in reports)}
    for report in reports:
        own = asdict(report)
        steps = own.pop("seconds")
        if not report.skipped:
            del own["skipped"]
        own["dirty_ratio"] = round(report.dirty_ratio, 3)
        figures[own.pop("name")] = {**own, "seconds of": steps}
    notes = [
        f"{report.name}: no new generation: {report.skipped}"
        for report in reports
        if report.skipped
    ]
    return Outcome(figures, problems, notes=notes, labels=_COMPACTED)


def export(spark: SparkSession, options: Any) -> Outcome:
    names = frozenset(options.topics.split(",")) if options.topics else None
    report = export_log(
        spark,
        _logs(options, options.broker),
        options.target,
        topics=TopicChoice(names, options.topic_pattern, options.include_internal_topics),
        sealed_only=not options.whole,
        fails_on_data_loss=not options.allow_data_loss,
        skips_damage=options.skip_damage,
        merges=options.merge,
        keep_seconds=options.keep_replaced_seconds,
        group=options.consumer_group,
    )
    figures = asdict(report)
    gaps = figures.pop("gaps")
    notes = [gap_text(gap) for gap in report.gaps] + _left_out(options, report.log_bytes)
    return Outcome({**figures, "gaps": len(gaps)}, notes=notes, labels=_EXPORTED)


def verify(spark: SparkSession, options: Any) -> Outcome:
    into = ExportTarget.of(options.target)
    if is_export(into):
        return _verify_export(spark, options)
    target = _directory(options)
    if not target.is_dir():
        raise Unusable(f"{target} does not exist")
    if generation := generation_directory(target):
        report, problems = verify_generation(spark, generation)
        return _verified("generation", asdict(report), problems)
    if manifest_path(target).exists() or index_paths(target):
        return _verify_index(spark, options, target)
    if queue_files(target):
        found, differences = verify_queues(spark, _needed_log(options), target)
        return _verified("queues", asdict(found), differences)
    raise Unusable(f"{target} contains no index, no queues, no generation and no export")


def _verify_export(spark: SparkSession, options: Any) -> Outcome:
    source = _logs(options) if options.store or options.endpoint else None
    report, problems = verify_export(spark, options.target, source)
    return _verified("export", asdict(report), problems)


def _verify_index(spark: SparkSession, options: Any, target: Path) -> Outcome:
    problems = verify_index(spark, _needed_log(options), target)
    manifest = read_manifest(target.resolve())
    files = manifest.files if manifest else ()
    figures = {
        "files": len(files),
        "keys": sum(file.keys for file in files),
        "end_offset": manifest.end_offset if manifest else 0,
    }
    return _verified("index", figures, problems)


def _verified(what: str, figures: dict[str, Any], problems: Sequence[str]) -> Outcome:
    labels = {**_READ, **{name: f"{name} verified" for name in ("files", "bytes")}}
    labels["compared"] = "messages compared with the log"
    figures = {"verified": what, **figures, "differences": len(problems)}
    return Outcome(figures, problems, labels=labels)


def _needed_log(options: Any) -> str | LogSource:
    if not (options.store or options.endpoint):
        raise Unusable(
            f"{redacted(options.target)}: name the log to compare with: --store or --endpoint"
        )
    return _one_log(options)


def _one_log(options: Any) -> str | LogSource:
    if options.endpoint is None:
        return str(options.store)
    return LiveCluster(options.endpoint, broker=options.broker)


def _logs(options: Any, broker: str | None = None) -> LogSource:
    """Return the log of the store directory, or the logs of the cluster or one of its brokers."""
    if options.endpoint is None:
        return StoreDirectory(
            options.store, options.broker or PurePath(redacted(options.store)).name
        )
    skips = getattr(options, "skip_brokers_away", False)
    return LiveCluster(options.endpoint, skips_brokers_away=skips, broker=broker)


def _directory(options: Any) -> Path:
    return _path(options.target)


def _path(text: str) -> Path:
    if "://" in text:
        raise Unusable(f"{redacted(text)}: expected a directory of this machine, not a URI")
    return Path(text)


def _left_out(options: Any, log_bytes: int) -> list[str]:
    if log_bytes or options.whole or options.store is None:
        return []
    return [
        "nothing new: the last CommitLog file was skipped because a broker may be writing to it; "
        "if no broker uses the store directory, add --whole"
    ]
