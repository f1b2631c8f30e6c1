"""OpenTelemetry spans, by the SDK's hooks; nothing else in the SDK imports this package."""

try:
    import opentelemetry.trace  # noqa: F401 - asked for here, so that its lack is told in one way
except ImportError as failure:
    raise ImportError("tracing needs OpenTelemetry: pip install 'rockoon[otel]'") from failure

from rockoon.tracing.tracing import Tracing

__all__ = ["Tracing"]
