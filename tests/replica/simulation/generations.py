"""Generations while leaders change: each leader has all values, in its log or in its generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replica.simulation.truth import Violation
from support.byte_log import ByteLog

if TYPE_CHECKING:
    from replica.simulation.node import Node
    from replica.simulation.world import World


def check_generation(world: World, leader: Node) -> None:
    """Check that a leader has each acknowledged value; no value supersedes another.

    The comparison of logs checks the records that it has not deleted.
    """
    log = leader.log
    if not world.generations or not isinstance(log, ByteLog):
        return
    deleted = {value for value, (first, _) in world.truth.acked.items() if first < log.min_offset}
    if lost := {value for value in deleted if b"%d" % value not in log.kept}:
        raise Violation(f"{leader.replica} leads, and has {lost} neither in its log nor beside it")
