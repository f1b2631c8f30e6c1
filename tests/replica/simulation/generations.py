"""Generations while leaders come and go: whoever leads has all values, in its log or beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replica.simulation.truth import Violation
from support.byte_log import ByteLog

if TYPE_CHECKING:
    from replica.simulation.node import Node
    from replica.simulation.world import World


def check_generation(world: World, leader: Node) -> None:
    """A leader has each value that was acknowledged; none supersedes another.

    What it has not deleted is for the comparison of logs.
    """
    log = leader.log
    if not world.generations or not isinstance(log, ByteLog):
        return
    deleted = {value for value, (first, _) in world.truth.acked.items() if first < log.min_offset}
    if lost := {value for value in deleted if b"%d" % value not in log.kept}:
        raise Violation(f"{leader.replica} leads, and has {lost} neither in its log nor beside it")
