"""Snapshots for etcd: an etcd that begins with one has the same keys, with the same revisions."""

import random

import pytest

from rockoon_nameserver.etcd import Etcd
from rockoon_nameserver.etcd_data import DeleteKey, Header, KeyValue, PutKey, only, unchanged
from rockoon_nameserver.etcd_snapshot import snapshot
from rockoon_nameserver.keyspace import Keyspace, TopicKey
from rockoon_nameserver.route_store import Compacted
from support.etcd import EtcdServer
from support.seeds import seeds

KEYSPACE = Keyspace("rockoon")
REVISION = 10_000_000
# With branch pages of two levels.
KEYS = 10_000


def random_keys(chance: random.Random, count: int) -> list[KeyValue]:
    """Keys with values of up to some pages. Some pairs were changed by one transaction."""
    found = []
    for number in range(count):
        created = chance.randrange(2, REVISION - 1)
        changed = chance.choice((created, created, min(created + chance.randrange(9), REVISION)))
        value = chance.randbytes(chance.choice((0, 1, 80, 150, 300, chance.randrange(20_000))))
        name = f"topic-{number}" + "x" * chance.randrange(100)
        found.append(KeyValue(KEYSPACE.key(TopicKey(name)), value, created, changed, 0))
    for _ in range(count // 10):
        first, second = chance.randrange(count), chance.randrange(count)
        changed = max(found[first].mod_revision, found[second].mod_revision)
        for each in (first, second):
            found[each] = found[each]._replace(mod_revision=changed)
    return found


@pytest.mark.parametrize("seed", seeds(2))
async def test_an_etcd_of_a_snapshot_has_the_former_revisions(
    new_etcd: EtcdServer, seed: int
) -> None:
    chance = random.Random(seed)
    items = random_keys(chance, chance.choice((KEYS, 300, 20)))
    new_etcd.begin_with(snapshot(items, REVISION))
    new_etcd.start()
    changed, deleted = chance.sample(items, 2)
    async with Etcd([new_etcd.endpoint]) as etcd:
        header, found = await etcd.read(KEYSPACE.everything)
        assert header.revision == REVISION
        assert found == sorted(items)
        async with etcd.watch(KEYSPACE.everything, REVISION - 1) as (_, batches):
            with pytest.raises(Compacted):
                await anext(batches)
        # The next change has the next revision, and conditions compare the former ones.
        condition = unchanged(changed.key, changed.mod_revision)
        outcome = await etcd.transaction([condition], [PutKey(changed.key, b"new")])
        assert (outcome.succeeded, outcome.revision) == (True, REVISION + 1)
        await etcd.transaction([], [DeleteKey(only(deleted.key))])
    # The database is sound: etcd compacts and rewrites it, and reads it at a start.
    new_etcd.control("compact", str(REVISION + 2))
    new_etcd.control("defrag")
    new_etcd.kill()
    new_etcd.start()
    wanted = {each.key: each for each in items if each.key != deleted.key}
    wanted[changed.key] = changed._replace(value=b"new", mod_revision=REVISION + 1)
    async with Etcd([new_etcd.endpoint]) as etcd:
        after = await etcd.read(KEYSPACE.everything)
        assert after == (Header(REVISION + 2, header.cluster_id), sorted(wanted.values()))


async def test_an_etcd_of_a_snapshot_has_nothing_but_the_keys(new_etcd: EtcdServer) -> None:
    item = KeyValue(KEYSPACE.identity, b"7", 5, 5, 0)
    new_etcd.begin_with(snapshot([item], 5))
    new_etcd.start()
    assert new_etcd.control("get", "", "--prefix", "--keys-only").split() == [KEYSPACE.identity]
