"""Alert rules against scripted series, without promtool: the part of PromQL that they use.

As Prometheus does it: a series ends five minutes after its last sample, a counter's increase is
extrapolated to the range and never below zero, and an alert fires once its expression has held at
each evaluation for as long as the rule says. `test_alerts.py` compares it with promtool.
"""

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import promql_parser as promql
from numpy.typing import NDArray

LOOKBACK_SECONDS = 300
EVALUATION_SECONDS = 60

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
UNITS = {"s": 1, "m": 60, "h": 3600}
REPEATED = re.compile(r"(?P<first>-?[\d.]+)(?P<step>[+-][\d.]+)?x(?P<more>\d+)")
SERIES = re.compile(r"(?P<name>\w+)\{(?P<labels>.*)\}")
LABEL = re.compile(r'(\w+)="([^"]*)"')
ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan,
    "-": operator.sub,
}
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


class Series(NamedTuple):
    """Samples at increasing times, in seconds."""

    name: str
    labels: Labels
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]


def seconds_of(text: str) -> int:
    """Parse "10m" as in promtool's tests and rules."""
    return int(text[:-1]) * UNITS[text[-1]]


def series_of(test: Mapping[str, Any]) -> list[Series]:
    """Script of one test of a file."""
    made = []
    for each in test["input_series"]:
        found = SERIES.fullmatch(each["series"])
        assert found is not None, each["series"]
        values: list[float] = []
        for part in str(each["values"]).split():
            if (repeated := REPEATED.fullmatch(part)) is None:
                values.append(float(part))
                continue
            first, step = float(repeated["first"]), float(repeated["step"] or 0)
            values += [first + step * index for index in range(int(repeated["more"]) + 1)]
        seconds = np.arange(len(values)) * float(seconds_of(test["interval"]))
        labels = frozenset(LABEL.findall(found["labels"]))
        made.append(Series(found["name"], labels, seconds, np.array(values)))
    return made


def firing(rule: Mapping[str, Any], series: Sequence[Series], at_seconds: int) -> set[Labels]:
    """Return the labels, without the rule's own, of the alerts that fire at a time."""
    expression = promql.parse(rule["expr"])
    since = at_seconds - seconds_of(rule.get("for", "0s"))
    if since < 0:
        return set()
    held: set[Labels] | None = None
    for now in range(since, at_seconds + 1, EVALUATION_SECONDS):
        found = Evaluation(series, now).vector(expression).keys()
        held = set(found) if held is None else held & found
        if not held:
            return set()
    assert held is not None
    return held


class Evaluation:
    """Expressions at one time.

    Args:
        series: all existing series.
        now: seconds.
    """

    def __init__(self, series: Sequence[Series], now: int) -> None:
        self._series = series
        self._now = now

    def vector(self, expression: Any) -> Vector:
        """The value of an expression that is one of many series."""
        found = self._value(expression)
        assert isinstance(found, dict), f"{expression.prettify()} is a number"
        return found

    def _value(self, expression: Any) -> Vector | float:
        match expression:
            case promql.NumberLiteral():
                return float(expression.val)
            case promql.ParenExpr():
                return self._value(expression.expr)
            case promql.VectorSelector():
                return self._newest(expression)
            case promql.AggregateExpr():
                return self._aggregated(expression)
            case promql.Call():
                return self._called(expression)
            case promql.BinaryExpr():
                return self._combined(expression)
        raise NotImplementedError(expression.prettify())

    def _chosen(self, selector: Any) -> Iterator[Series]:
        for series in self._series:
            labels = dict(series.labels)
            if series.name == selector.name and all(
                matches(matcher, labels.get(matcher.name, ""))
                for matcher in selector.matchers.matchers
            ):
                yield series

    def _newest(self, selector: Any) -> Vector:
        found: Vector = {}
        for series in self._chosen(selector):
            index = int(np.searchsorted(series.seconds, self._now, "right")) - 1
            if index >= 0 and series.seconds[index] > self._now - LOOKBACK_SECONDS:
                found[series.labels] = float(series.values[index])
        return found

    def _aggregated(self, expression: Any) -> Vector:
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in self.vector(expression.expr).items():
            by = expression.modifier.labels
            groups[frozenset((k, v) for k, v in labels if k in by)].append(value)
        how = {"sum": sum, "max": max, "min": min}[str(expression.op)]
        return {labels: float(how(values)) for labels, values in groups.items()}

    def _called(self, expression: Any) -> Vector | float:
        name, arguments = expression.func.name, expression.args
        if name == "time":
            return float(self._now)
        if name == "histogram_quantile":
            quantile = self._value(arguments[0])
            assert isinstance(quantile, float)
            return quantiles(quantile, self.vector(arguments[1]))
        selector, *more = arguments
        parameters = [self._value(each) for each in more]
        span = selector.range
        assert isinstance(span, timedelta)
        found: Vector = {}
        for series in self._chosen(selector.vector_selector):
            begin = self._now - span.total_seconds()
            within = (series.seconds >= begin) & (series.seconds <= self._now)
            seconds, values = series.seconds[within] - self._now, series.values[within]
            if len(values) >= (1 if name in ("max_over_time", "min_over_time") else 2):
                found[series.labels] = OVER_TIME[name](
                    seconds, values, span.total_seconds(), *parameters
                )
        return found

    def _combined(self, expression: Any) -> Vector | float:
        how = str(expression.op)
        left, right = self._value(expression.lhs), self._value(expression.rhs)
        if how in ("and", "or", "unless"):
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            if how == "or":
                return right | left
            kept = left.keys() & right.keys() if how == "and" else left.keys() - right.keys()
            return {labels: value for labels, value in left.items() if labels in kept}
        pairs = paired(left, right)
        if how in COMPARISONS:
            return {
                labels: a
                for labels, (a, b) in pairs.items()
                if labels is not None and COMPARISONS[how](a, b)
            }
        results = {labels: ARITHMETIC[how](a, b) for labels, (a, b) in pairs.items()}
        if None in results:
            return results[None]
        return {labels: value for labels, value in results.items() if labels is not None}


def matches(matcher: Any, value: str) -> bool:
    """Return whether a label's value matches."""
    if str(matcher.op) in ("MatchOp.Re", "MatchOp.NotRe"):
        is_equal = re.fullmatch(matcher.value, value) is not None
        return is_equal == (str(matcher.op) == "MatchOp.Re")
    assert str(matcher.op) == "MatchOp.Equal", matcher.op
    return bool(value == matcher.value)


def paired(left: Vector | float, right: Vector | float) -> dict[Labels | None, tuple[float, float]]:
    """Return pairs of values that are combined; two numbers have no labels."""
    if isinstance(left, dict) and isinstance(right, dict):
        return {labels: (left[labels], right[labels]) for labels in left if labels in right}
    if isinstance(left, dict):
        assert not isinstance(right, dict)
        return {labels: (value, right) for labels, value in left.items()}
    if isinstance(right, dict):
        return {labels: (left, value) for labels, value in right.items()}
    return {None: (left, right)}


def increase(seconds: NDArray[np.float64], values: NDArray[np.float64], span: float) -> float:
    """Increase of a counter that was never reset, extrapolated as by Prometheus."""
    gained = float(values[-1] - values[0])
    sampled = float(seconds[-1] - seconds[0])
    pause = sampled / (len(values) - 1)
    before, after = float(seconds[0]) + span, -float(seconds[-1])
    if gained > 0:
        before = min(before, sampled * float(values[0]) / gained)
    for gap in (before, after):
        sampled += gap if gap < 1.1 * pause else pause / 2
    return gained * sampled / float(seconds[-1] - seconds[0])


def line(seconds: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float]:
    """Slope, and value at the time of evaluation, by least squares."""
    away = seconds - seconds.mean()
    slope = float((away * (values - values.mean())).sum() / (away**2).sum())
    return slope, float(values.mean() - slope * seconds.mean())


OVER_TIME: Mapping[str, Callable[..., float]] = {
    "increase": increase,
    "rate": lambda seconds, values, span: increase(seconds, values, span) / span,
    "deriv": lambda seconds, values, _: line(seconds, values)[0],
    "predict_linear": lambda seconds, values, _, ahead: (
        line(seconds, values)[1] + line(seconds, values)[0] * ahead
    ),
    "max_over_time": lambda _, values, __: float(values.max()),
    "min_over_time": lambda _, values, __: float(values.min()),
}


def quantiles(quantile: float, buckets: Vector) -> Vector:
    """Quantile of each histogram, interpolated between the limits of its bucket."""
    histograms: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        rest = frozenset((name, value) for name, value in labels if name != "le")
        histograms[rest].append((float(dict(labels)["le"]), count))
    found: Vector = {}
    for labels, limits in histograms.items():
        limits.sort()
        wanted = quantile * limits[-1][1]
        low_limit = low_count = 0.0
        for limit, count in limits:
            if count >= wanted:
                share = (wanted - low_count) / (count - low_count) if count > low_count else 0.0
                # All values above the last limit but one count as this limit.
                found[labels] = (
                    low_limit if limit == math.inf else low_limit + (limit - low_limit) * share
                )
                break
            low_limit, low_count = limit, count
    return found
