"""Every cut can be chosen, and names existing hosts."""

import pytest
from hosts.cuts import CUT_CLIENTS, cuts_of, named
from hosts.shape import (
    ETCD_LEADER,
    FOLLOWER,
    LEADER,
    OFFSET,
    OFFSET_FOLLOWERS,
    ONE_COPY,
    OTHER_FOLLOWER,
    THREE_COPIES,
    Shape,
)

ROLES = {
    LEADER: "broker-a-2",
    FOLLOWER: "broker-a-0",
    OTHER_FOLLOWER: "broker-a-1",
    OFFSET: "offset-1",
    **dict(zip(OFFSET_FOLLOWERS, ("offset-0", "offset-2"), strict=True)),
    ETCD_LEADER: "etcd-b",
}


@pytest.mark.parametrize("shape", [ONE_COPY, THREE_COPIES], ids=["one copy", "three copies"])
def test_each_cut_has_a_name_of_its_own_and_is_about_hosts_that_there_are(shape: Shape) -> None:
    roles = ROLES if shape.copies > 1 else {LEADER: "broker-a", OFFSET: "offset"}
    cuts = cuts_of(shape)
    assert len({cut.name for cut in cuts}) == len(cuts)
    for cut in cuts:
        assert named(cut.name, shape) == cut
        directions = cut.directions_now(roles)
        assert directions or cut.slow or cut.deed, cut.name
        hosts = {host for way in directions for host in way} | set(cut.victims_now(roles))
        assert hosts <= set(shape.hosts), cut.name
        assert all(one != other for one, other in directions)
        assert len(set(directions)) == len(directions)


def test_a_leader_is_cut_from_its_clients_whichever_it_is() -> None:
    cut = named("clients → leader", THREE_COPIES)
    assert cut.directions_now(ROLES) == tuple((one, "broker-a-2") for one in CUT_CLIENTS)
