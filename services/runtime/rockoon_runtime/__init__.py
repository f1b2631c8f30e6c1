"""Runtime of every service's process: settings, start, drain, health, telemetry."""

import rockoon_proto as rockoon_proto  # before gRPC, which it keeps quiet
