"""OpenTelemetry spans through the SDK's hooks; no other module of the SDK imports this package."""

try:
    import opentelemetry.trace  # noqa: F401 - imported here for one clear error if it is missing
except ImportError as failure:
    raise ImportError("tracing needs OpenTelemetry: pip install 'rockoon[otel]'") from failure

from rockoon.tracing.tracing import Tracing

__all__ = ["Tracing"]
