"""Keys and queues of scenarios."""

from collections import Counter

import pytest

from load.lanes import LANES_MAX, lanes_of
from load.options import parser
from load.plan import Plan
from load.run import plan_of
from load.sender import turns
from rockoon_core.message_queue import MessageQueue


def plan(*arguments: str) -> Plan:
    options = parser({}).parse_args(["run", "--commit", "abc", *arguments])
    return plan_of(options, "127.0.0.1:9876")


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_hot_key_is_the_same_for_all_senders_and_gets_its_share(share: float) -> None:
    chosen = plan("--scenario", "hot-key", "--hot-share", str(share))
    keys: Counter[str] = Counter()
    for sender in (0, 1):
        lanes = lanes_of(chosen, sender, [])
        order = turns(lanes)
        keys.update(lanes[lane].options["key"] for lane in order)
    assert keys["hot"] / keys.total() == pytest.approx(share, abs=0.02)
    others = [count for key, count in keys.items() if key != "hot"]
    assert len(others) >= 20
    assert len(set(others)) == 1


def test_senders_reach_every_queue_and_no_stream_has_two_of_them() -> None:
    chosen = plan("--scenario", "many-topics")
    queues = [
        MessageQueue(name, "broker-a", number) for name in chosen.topic_names for number in (0, 1)
    ]
    lanes = [lane for sender in range(4) for lane in lanes_of(chosen, sender, queues)]
    assert len(lanes) == 4 * LANES_MAX
    assert {lane.options["queue"] for lane in lanes} == set(queues)
    assert all(lane.topic == lane.options["queue"].topic for lane in lanes)
    assert len({lane.stream for lane in lanes}) == len(lanes)
