"""How long services of tests may take to leave."""

from rockoon_runtime.wire import DrainSettings

AT_ONCE = DrainSettings(drain_seconds_max=0)
