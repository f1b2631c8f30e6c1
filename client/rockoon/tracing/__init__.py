"""OpenTelemetry spans; nothing else in the SDK imports this package."""

from rockoon.tracing.tracing import Tracing

__all__ = ["Tracing"]
