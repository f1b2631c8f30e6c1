"""rocketmq-python-client, controlled by lines of JSON (see `client_process.py`)."""

import json
import math
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

OUT = sys.stdout
SAYING = threading.Lock()
CLIENTS: dict[str, Any] = {}
MESSAGES: dict[str, Message] = {}


def say(kind: str, what: dict[str, Any]) -> None:
    with SAYING:
        OUT.write(f"{kind} {json.dumps(what)}\n")
        OUT.flush()


def view(message: Message) -> dict[str, Any]:
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": message.properties,
        "group": message.message_group,
        "lite": message.lite_topic,
        "priority": message.priority,
        "attempt": message.delivery_attempt,
    }


class Checker(TransactionChecker):
    def __init__(self, resolution: str) -> None:
        self._resolution = resolution

    def check(self, message: Message) -> Any:
        say("*", {"event": "check", **view(message)})
        return getattr(TransactionResolution, self._resolution.upper())


class Listener(MessageListener):
    """Fails with each message, or with those of one body, a number of times; or never returns."""

    def __init__(self, fails: int, failing: str | None, *, holds: bool) -> None:
        self._fails = fails
        self._failing = failing
        self._holds = holds
        self._seen = Counter[str]()

    def consume(self, message: Message) -> ConsumeResult:
        self._seen[message.message_id] += 1
        say("*", {"event": "message", **view(message)})
        if "work_ms" in message.properties:
            time.sleep(int(message.properties["work_ms"]) / 1000)
            say("*", {"event": "worked", **view(message)})
        if self._holds:
            threading.Event().wait()
        concerned = self._failing is None or self._failing == message.body.decode()
        if concerned and self._seen[message.message_id] <= self._fails:
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


def configuration(given: dict[str, Any]) -> ClientConfiguration:
    keys = (given["access_key"], given["secret_key"]) if "access_key" in given else ()
    return ClientConfiguration(
        given["endpoint"], Credentials(*keys), namespace=given.get("namespace", "")
    )


def subscription(given: dict[str, Any]) -> dict[str, FilterExpression]:
    if "sql" in given:
        return {given["topic"]: FilterExpression(given["sql"], FilterType.SQL)}
    return {given["topic"]: FilterExpression(given.get("tag", "*"))}


def producer(given: dict[str, Any]) -> Producer:
    checker = Checker(given["check"]) if "check" in given else None
    made = Producer(
        configuration(given), tuple(given["topics"]), checker, tls_enable=given.get("tls", False)
    )
    made.startup()
    return made


def simple(given: dict[str, Any]) -> SimpleConsumer:
    made = SimpleConsumer(
        configuration(given),
        given["group"],
        subscription(given),
        given["await_ms"] // 1000,
        tls_enable=given.get("tls", False),
    )
    made.startup()
    return made


def push(given: dict[str, Any]) -> PushConsumer:
    made = PushConsumer(
        configuration(given),
        given["group"],
        Listener(given.get("fails", 0), given.get("failing"), holds=given.get("holds", False)),
        subscription(given),
        tls_enable=given.get("tls", False),
    )
    made.startup()
    return made


def lite_simple(given: dict[str, Any]) -> LiteSimpleConsumer:
    made = LiteSimpleConsumer(
        given["topic"], configuration(given), given["group"], given["await_ms"] // 1000
    )
    made.startup()
    return made


def lite_push(given: dict[str, Any]) -> LitePushConsumer:
    listener = Listener(given.get("fails", 0), given.get("failing"), holds=False)
    made = LitePushConsumer(configuration(given), given["group"], given["topic"], listener)
    made.startup()
    return made


ROLES = {
    "producer": producer,
    "simple": simple,
    "push": push,
    "lite_simple": lite_simple,
    "lite_push": lite_push,
}


def send(given: dict[str, Any]) -> dict[str, Any]:
    message = Message()
    message.topic = given["topic"]
    message.body = given["body"].encode()
    if "tag" in given:
        message.tag = given["tag"]
    for key in given.get("keys", ()):
        message.keys = key
    for key, value in given.get("properties", {}).items():
        message.add_property(key, value)
    if "group" in given:
        message.message_group = given["group"]
    if "lite" in given:
        message.lite_topic = given["lite"]
    if "priority" in given:
        message.priority = given["priority"]
    if "delay_ms" in given:
        # Whole seconds, contrary to its documentation.
        message.delivery_timestamp = math.ceil(time.time_ns() / 1e9 + given["delay_ms"] / 1000)
    through = CLIENTS[given["name"]]
    if "end" in given:
        transaction = through.begin_transaction()
        receipt = through.send(message, transaction)
        if given["end"] != "none":
            getattr(transaction, given["end"])()
    else:
        receipt = through.send(message)
    return {"id": receipt.message_id, "recall": receipt.recall_handle}


def receive(given: dict[str, Any]) -> dict[str, Any]:
    found = []
    for message in CLIENTS[given["name"]].receive(given["max"], given["invisible_ms"] // 1000):
        handle = f"m{len(MESSAGES)}"
        MESSAGES[handle] = message
        found.append({"handle": handle, **view(message)})
    return {"messages": found}


def done(given: dict[str, Any]) -> dict[str, Any]:
    match given["do"]:
        case role if role in ROLES:
            CLIENTS[given["name"]] = ROLES[role](given)
        case "subscribe" if "first" not in given:
            CLIENTS[given["name"]].subscribe_lite(given["lite"])
        case "unsubscribe":
            CLIENTS[given["name"]].unsubscribe_lite(given["lite"])
        case "send":
            return send(given)
        case "recall":
            return {"id": CLIENTS[given["name"]].recall_message(given["topic"], given["handle"])}
        case "receive":
            return receive(given)
        case "ack":
            CLIENTS[given["name"]].ack(MESSAGES[given["handle"]])
        case "change":
            CLIENTS[given["name"]].change_invisible_duration(
                MESSAGES[given["handle"]], given["after_ms"] // 1000
            )
        case "stop":
            CLIENTS.pop(given["name"]).shutdown()
        case other:
            return {"unsupported": other}
    return {}


def main() -> None:
    # Output of the library must not look like an answer.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        try:
            answer = done(json.loads(line))
        # Any exception is the answer.
        except Exception as failure:  # noqa: BLE001
            traceback.print_exc()
            answer = {"error": f"{type(failure).__name__}: {failure}"}
        say(">", answer)


if __name__ == "__main__":
    main()
