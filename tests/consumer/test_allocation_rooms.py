"""Queues that are read in their broker's room, or by members that an operator names."""

import pytest

from rockoon.allocation import (
    AVERAGE,
    AVERAGE_BY_CIRCLE,
    STICKY,
    AllocationStrategy,
    Configured,
    MachineRoom,
    MachineRoomNearby,
    allocate,
)
from rockoon.errors import InvalidArgument
from rockoon_core.message_queue import MessageQueue

ROOM_TABLE = [
    (8, 3, "016/237/45"),
    (5, 2, "014/23"),
    (3, 4, "0/1/2/"),
    (7, 7, "0/1/2/3/4/5/6"),
]

NEARBY_TABLE = [
    (8, 3, {"A-c1": "A0 A2 B1 B3", "A-c3": "A4 A6 B5", "C-c2": "B7"}),
    (5, 2, {"A-c1": "A0 A2 A4 B1", "C-c2": "B3"}),
    (3, 4, {"A-c1": "A0 B1", "A-c3": "A2", "C-c2": "", "C-c4": ""}),
    (
        7,
        7,
        {
            "A-c1": "A0 B1",
            "A-c3": "A2 B3",
            "A-c5": "A4 B5",
            "A-c7": "A6",
            "C-c2": "",
            "C-c4": "",
            "C-c6": "",
        },
    ),
]


def room_queues(broker: str, count: int) -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, number) for number in range(count)]


def read_by(
    strategy: AllocationStrategy, members: list[str], queues: list[MessageQueue]
) -> dict[str, set[MessageQueue]]:
    topics_of = {member: {"TopicTest"} for member in members}
    return {member: allocate(strategy, member, topics_of, queues) for member in members}


def room(name: str) -> str:
    return name.partition("-")[0]


def nearby(inner: AllocationStrategy) -> MachineRoomNearby:
    return MachineRoomNearby(inner, lambda queue: room(queue.broker), room)


@pytest.mark.parametrize(("queues", "members", "expected"), ROOM_TABLE)
def test_the_queues_of_a_room_are_shared_as_in_rocketmq(
    queues: int, members: int, expected: str
) -> None:
    found = read_by(
        MachineRoom(frozenset({"room1"})),
        [f"c{number + 1}" for number in range(members)],
        room_queues("room1@broker-a", queues),
    )
    ids = ["".join(str(n) for n in sorted(q.queue_id for q in mine)) for mine in found.values()]
    assert "/".join(ids) == expected


def test_queues_outside_the_rooms_are_read_by_nobody() -> None:
    brokers = ["room1@a", "room2@a", "room1", "room1@", "@room1", "room1@a@b", "room1@b@", ""]
    queues = [queue for broker in brokers for queue in room_queues(broker, 1)]
    found = read_by(MachineRoom(frozenset({"room1", "room3"})), ["c1"], queues)
    assert {queue.broker for queue in found["c1"]} == {"room1@a", "room1@b@"}


def test_rooms_may_be_told_from_names_that_a_nameserver_accepts() -> None:
    queues = room_queues("room1.broker-a", 2) + room_queues("room2.broker-a", 2)
    found = read_by(MachineRoom(frozenset({"room1"}), separator="."), ["c1"], queues)
    assert found == {"c1": {*queues[:2]}}


def test_no_room_and_no_separator_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="without a room"):
        MachineRoom(frozenset())
    with pytest.raises(InvalidArgument, match="separator"):
        MachineRoom(frozenset({"room1"}), separator="")


@pytest.mark.parametrize(("queues", "members", "expected"), NEARBY_TABLE)
def test_rooms_with_readers_read_their_own_and_all_share_the_rest_as_in_rocketmq(
    queues: int, members: int, expected: dict[str, str]
) -> None:
    found = read_by(
        nearby(AVERAGE),
        [f"{'AC'[number % 2]}-c{number + 1}" for number in range(members)],
        [
            MessageQueue("TopicTest", f"{'AB'[number % 2]}-broker", number)
            for number in range(queues)
        ],
    )
    shown = {
        member: " ".join(f"{queue.broker[0]}{queue.queue_id}" for queue in sorted(mine))
        for member, mine in found.items()
    }
    assert shown == expected


def test_a_room_is_shared_by_the_inner_strategy_which_the_name_tells() -> None:
    strategy = nearby(AVERAGE_BY_CIRCLE)
    queues = room_queues("A-broker", 4)
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"
    assert read_by(strategy, ["A-c1", "A-c2", "B-c3"], queues) == {
        "A-c1": {queues[0], queues[2]},
        "A-c2": {queues[1], queues[3]},
        "B-c3": set(),
    }


def test_an_inner_strategy_that_keeps_owners_is_told_them() -> None:
    queues = room_queues("A-broker", 4)
    owners = {queues[number]: ("A-c1", "A-c2")[number // 2] for number in range(4)}
    swapped = {queues[number]: ("A-c2", "A-c1")[number // 2] for number in range(4)}
    topics_of = {"A-c1": {"TopicTest"}, "A-c2": {"TopicTest"}, "B-c3": {"TopicTest"}}
    for known in (owners, swapped):
        for member in ("A-c1", "A-c2"):
            mine = allocate(nearby(STICKY), member, topics_of, queues, known)
            assert mine == {queue for queue in queues if known[queue] == member}


def test_a_queue_or_member_without_a_room_is_refused() -> None:
    queues = room_queues("A-broker", 1)
    with pytest.raises(InvalidArgument, match="-c2 has no machine room"):
        read_by(nearby(AVERAGE), ["A-c1", "-c2"], queues)
    with pytest.raises(InvalidArgument, match="TopicTest@-broker:0 has no machine room"):
        read_by(nearby(AVERAGE), ["A-c1"], room_queues("-broker", 1))


@pytest.mark.parametrize(("queues", "members"), [(8, 3), (5, 2), (3, 4), (7, 7)])
def test_a_configured_list_is_read_whoever_else_is_there(queues: int, members: int) -> None:
    there = room_queues("broker-a", queues)
    found = read_by(
        Configured((there[2], there[0])), [f"c{number + 1}" for number in range(members)], there
    )
    assert all(mine == {there[0], there[2]} for mine in found.values())


def test_a_configured_queue_that_is_not_there_or_of_another_topic_is_left_out() -> None:
    there = room_queues("broker-a", 2)
    other = MessageQueue("Other", "broker-a", 0)
    strategy = Configured((there[1], MessageQueue("TopicTest", "broker-a", 9), other))
    assert allocate(strategy, "c1", {"c1": {"TopicTest"}}, [*there, other]) == {there[1]}
    topics_of = {"c1": {"TopicTest", "Other"}}
    assert allocate(strategy, "c1", topics_of, [*there, other]) == {there[1], other}
