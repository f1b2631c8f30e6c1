"""OpenTelemetry spans; nothing else in the SDK imports this package."""
