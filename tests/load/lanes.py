"""Streams of a sender: keys and queues of a scenario. Imports no Locust."""

from collections.abc import Sequence

from load import payload
from load.plan import Plan
from load.sender import Lane
from rockoon_core.message_queue import MessageQueue

LANES_MAX = 64
"""Maximum of one sender."""
HOT_LANES = 16


def lanes_of(plan: Plan, sender: int, queues: Sequence[MessageQueue]) -> list[Lane]:
    """Return the streams of one sender: with one hot key by keys, else to every queue.

    Args:
        plan: plan of the run.
        sender: its number.
        queues: queues of all the plan's topics.
    """
    names = plan.topic_names
    if plan.scenario == "hot-key":
        own = names[sender % len(names)]
        cold = (1 - plan.hot_share) / (HOT_LANES - 1)
        return [
            Lane(
                own,
                payload.stream_of(sender, number),
                {"key": "hot" if number == 0 else f"{sender}-{number}"},
                share=cold if number else plan.hot_share,
            )
            for number in range(HOT_LANES)
        ]
    # If there are more than one sender can serve, each has different ones.
    first = sender * LANES_MAX % len(queues) if len(queues) > LANES_MAX else sender
    chosen = [queues[(first + n) % len(queues)] for n in range(min(len(queues), LANES_MAX))]
    return [
        Lane(queue.topic, payload.stream_of(sender, number), {"queue": queue})
        for number, queue in enumerate(chosen)
    ]
