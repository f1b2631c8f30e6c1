"""RocketMQ writes a store, Rockoon continues with it, and RocketMQ again: both read all of it."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rocketmq import real
from rocketmq.real import RocketMq, message, transaction
from rocketmq.visits import Seen, Visitor, rockoon_on, seen_by_rocketmq
from rockoon.message import Message
from rockoon.transactions.transaction import Resolution
from support.waiting import wait_until

TOPIC = "orders"
COMPRESSIONS = ("ZLIB", "LZ4", "ZSTD")
HOUR_MS = 3_600_000
SOON = b"soon"
OPEN_UNTIL_HERE = b"open-3"
CHECKSUMS = {"enabledAppendPropCRC": "true"}

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "IPv6": real.IPV6,
    "ext queues": {"enableConsumeQueueExt": "true"},
    "checksums": CHECKSUMS,
    "checksums looked at": {**CHECKSUMS, "forceVerifyPropCRC": "true"},
}


def write_as_rocketmq(broker: RocketMq) -> set[str]:
    """Send each kind of message; return the ids of the transactions without an end."""
    broker.topic(TOPIC, 2, message_type="NORMAL")
    broker.send(
        TOPIC,
        message(b"plain", tags="new", keys="key-1 key-2", properties={"colour": "gr\u00fcn"}),
        message(b"other queue", queue=1, tags="paid"),
    )
    for kind in COMPRESSIONS:
        body = kind.encode() + 2000 * b"."
        broker.send(TOPIC, message(body, tags="new"), compression=kind)
    broker.do("batch", topic=TOPIC, messages=[message(b"batch %d" % n) for n in range(3)])
    later_ms = int(time.time() * 1000) + HOUR_MS  # noqa: TID251 - the broker's clock
    broker.send(TOPIC, message(b"two hours", level=18), message(b"an hour", deliver_ms=later_ms))
    ended = [
        transaction(b"committed", "ended-1", "commit"),
        transaction(b"rolled back", "ended-2", "rollback"),
        transaction(b"committed by a check", "ended-3", "unknown", "commit", 2),
        transaction(b"rolled back by a check", "ended-4", "unknown", "rollback", 2),
    ]
    broker.do("transactions", topic=TOPIC, messages=ended)
    wait_until(lambda: asked(broker).keys() >= {"ended-3", "ended-4"}, "checks")
    wait_until(lambda: min(asked(broker).values()) >= 2, "second checks")
    wait_until(lambda: broker.do("quiet"), "the end of checks")
    left = broker.do(
        "transactions",
        topic=TOPIC,
        messages=[transaction(key.encode(), key, "unknown") for key in ("open-1", "open-3")],
    )
    wait_until(lambda: asked(broker).get("open-1", 0) >= 2, "checks of what stays open")
    broker.do("commit", group="billing", topic=TOPIC, queue=0, offset=3)
    popped = broker.do(
        "pop",
        topic=TOPIC,
        group="poppers",
        queue=0,
        count=4,
        invisible_ms=60_000,
        acknowledge=2,
    )
    assert len(popped) == 4
    return {each["id"] for each in left}


def asked(broker: RocketMq) -> dict[str, int]:
    """Return how often producers were checked, by their messages' keys."""
    found: dict[str, int] = broker.do("checks")
    return found


def write_as_rockoon(visitor: Visitor) -> set[str]:
    """Send each kind of message by the SDK; return the id of the transaction without an end."""
    connection = visitor.connection
    connection.send(TOPIC, b"ours", tags="new", keys=["key-3"], properties={"colour": "wei\u00df"})

    async def everything() -> None:
        for kind in COMPRESSIONS:
            settings: dict[str, Any] = {"compression": kind.lower(), "idempotent": True}
            async with connection.asyncio.producer(**settings) as producer:
                await producer.send(TOPIC, kind.encode() + 8000 * b".", tags="new")
                await producer.send(TOPIC, random.Random(1).randbytes(5000))
                await producer.send(TOPIC, b"much later", delay_seconds=7200)
                await producer.send(TOPIC, b"as late", delay_level=18)
        await connection.asyncio.producer().send_many(TOPIC, [b"%d" % n for n in range(100)])

    connection.call(everything())
    payers = connection.transactional_producer("payers", check=resolution)
    # RocketMQ's producer uses these in checks.
    said = {"local": "unknown", "check": "unknown", "from": "1"}
    for number, end in ((5, "commit"), (6, "rollback"), (2, None)):
        key = f"ended-{number}" if end else f"open-{number}"
        begun = payers.begin(TOPIC, key.encode(), keys=key, properties=said)
        if end:
            getattr(begun, end)()
    wait_until(lambda: OPEN_UNTIL_HERE in bodies(visitor.seen(TOPIC)), "the answer to a check")
    wait_until(lambda: SOON in bodies(visitor.seen(TOPIC)), "what was due soon")
    payers.close()
    return {begun.message_id}


def resolution(message: Message) -> Resolution:
    return Resolution.COMMIT if message.body == OPEN_UNTIL_HERE else Resolution.UNKNOWN


def bodies(seen: list[Seen]) -> list[bytes]:
    return [body for _, _, body, _ in seen]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ending", ["stopped", "killed"])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_store_goes_from_rocketmq_to_rockoon_and_back(
    configuration: str, ending: str, tmp_path: Path
) -> None:
    if ending == "killed" and configuration not in ("as it is", "checksums looked at"):
        pytest.skip("what a kill leaves does not depend on it")
    store = tmp_path / "cluster" / real.BROKER
    values = CONFIGURATIONS[configuration]
    with real.running(store, **values) as broker:
        waiting = write_as_rocketmq(broker)
        seen = seen_by_rocketmq(broker, TOPIC)
        broker.send(TOPIC, message(SOON, level=3))
        if ending == "killed":
            broker.kill()
    progress = (store / "config" / "consumerOffset.json").read_bytes()

    with rockoon_on(store) as visitor:
        visitor.topic(TOPIC, 2)
        assert [each for each in visitor.seen(TOPIC) if each[2] != SOON] == seen
        assert visitor.waiting() == waiting
        assert visitor.delayed(TOPIC) in (2, 3)
        assert (TOPIC, 0, 3) in visitor.taken_over(progress)
        by_tag = [each.body for each in visitor.connection.consume(TOPIC, "new", timeout=1)]
        assert sorted(by_tag) == sorted(body for _, _, body, p in seen if ("TAGS", "new") in p)
        told = visitor.told()
        (_, left) = sorted(waiting)
        waiting |= write_as_rockoon(visitor)
        waiting.remove(left)
        seen = visitor.seen(TOPIC)
        assert bodies(seen).count(SOON) == bodies(seen).count(OPEN_UNTIL_HERE) == 1
        if ending == "killed":
            # Op records of ends are written after three seconds, for RocketMQ alone.
            wait_until(lambda: visitor.told() == told + 3, "op records")
            visitor.local.kill(real.BROKER)

    with real.running(store, **values) as broker:
        found = seen_by_rocketmq(broker, TOPIC)
        if ending == "killed":
            # Delivered before the kill, and not recorded for RocketMQ yet: it may deliver it again.
            again = [each for each in found if each[2] == SOON and each not in seen]
            found = [each for each in found if each not in again[:1]]
        assert found == seen
        broker.do("transactions", topic=TOPIC, messages=[])
        wait_until(lambda: asked(broker).keys() >= {"open-1", "open-2"}, "checks")
        wait_until(lambda: min(asked(broker).values()) >= 2, "second checks")
        assert asked(broker).keys() == {"open-1", "open-2"}
        broker.send(TOPIC, message(b"and theirs again", tags="new", queue=1))
        seen = seen_by_rocketmq(broker, TOPIC)
        if ending == "killed":
            broker.kill()

    with rockoon_on(store) as visitor:
        assert visitor.seen(TOPIC) == seen
        assert visitor.waiting() == waiting
        assert visitor.delayed(TOPIC) == 8
