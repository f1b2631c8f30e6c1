"""Benchmarks of a cluster, of Spark, and of what a cluster carries; each is a command."""

import rockoon_proto

# As `docs/use/producers.md` tells who awaits single messages.
rockoon_proto.poll_in_place()
