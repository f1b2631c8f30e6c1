"""Time limits for the shutdown of services in tests."""

from rockoon_runtime.wire import DrainSettings

AT_ONCE = DrainSettings(drain_seconds_max=0)
