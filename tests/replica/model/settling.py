"""Settling of the model: all replicas run and are connected without faults, and must work again."""

from replica.model.violation import Violation
from replica.model.world import World
from rockoon_core.replication_rules import election_size


def settle(world: World, steps: int = 4000) -> bool | None:
    """Run the world until it is quiet.

    Returns:
        Whether a message could be stored; None if too few voters still have a disk, or no replica
        can adopt a log that etcd has lost.
    """
    world.cut.clear()
    for replica in world.replicas:
        if not replica.up:
            replica.restart()
    world.do_adopt(world.replicas[0], world.replicas[0])
    if world.register.frozen or not _can(world):
        return None
    target = None
    for number in range(steps):
        _one_round(world, number)
        epoch = world.register.epoch
        leader = next((r for r in world.replicas if r.role == "leader" and r.epoch == epoch), None)
        waits = leader is None or leader.moving is not None
        if number % 200 == 199 and (waits or number % 800 == 799):
            world.to_register("depose", epoch)
        if leader is not None:
            _mend_voters(world, leader, number)
            if target is None and leader.moving is None:
                world.values += 1
                target = world.values
            if target is not None and target not in world.acked:
                leader.append(target)
        world.check()
        if target in world.acked:
            for value, index in world.acked.items():
                if world.truth[index].value != value:
                    raise Violation(f"{value} is lost")
            if leader is not None:
                world.check_prefix(leader, "ends without")
            return True
    return False


def _can(world: World) -> bool:
    config = world.register.config
    alive = {replica.identity for replica in world.replicas}
    voters = config.in_sync & alive
    sound = [r for r in world.replicas if r.identity in voters and r.sound]
    if len(sound) < election_size(config) and len(voters) < len(config.in_sync):
        return False
    return len(alive) >= world.min_in_sync


def _one_round(world: World, number: int) -> None:
    for replica in world.replicas:
        if number % 7 == 0:
            replica.learn(world.register)
    for _ in range(3):
        world.deliver()
    for replica in world.replicas:
        if replica.role != "leader" and (replica.session is None or number % 50 == 0):
            replica.connect()
        replica.sync()
        if replica.role == "leader":
            replica.advance()
            for other in world.replicas:
                replica.send_chunk(other.identity)


def _mend_voters(world: World, leader, number: int) -> None:
    if leader.pending:
        leader.ask_again()
    elif number % 20 == 0:
        here = {each.identity for each in world.replicas}
        matched = frozenset({leader.identity, *leader.ends} & here)
        if matched != leader.configs[0].in_sync and len(matched) >= world.min_in_sync:
            leader.propose(world.config(matched))
