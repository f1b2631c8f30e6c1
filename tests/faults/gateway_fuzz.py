"""Calls of the gateway with odd fields: the code blames the caller, and no process is affected."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.calls import Maker
from faults.cluster import FaultyCluster
from faults.fuzz import ENDED
from faults.gateway_calls import CLIENTS, Requests, make_topics, methods
from faults.odd_fields import OddFields
from faults.scenario import Outcome, Task
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

import rockoon
from gateway.consumers import Consumer, bodies, handle
from gateway.wire_client import WireClient, message
from rockoon_proto.apache.rocketmq.v2 import definition_pb2 as d

CALLS = 20_000
AT_ONCE = 16
# A receiver that waits longer leaves.
PATIENCE_SECONDS = 1.0
CALL_SECONDS_MAX = 30.0
# Limit of the growth of the gateway's process, between a quarter of the calls and their end.
GROWTH_BYTES_MAX = 48 << 20
SERVERS_FAULT = range(50_000, 60_000)
# The gateway correctly replies that it does not serve these calls, whatever the request is.
NOT_IMPLEMENTED = frozenset({"DeleteSubscription", "GetConsumerRunningInfo"})
GRPC_WRONG = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "DEADLINE_EXCEEDED"})
SAMPLES = 20


@dataclass
class Findings:
    """Wrong replies, once for each call and code; and the number of replies by code."""

    codes: Counter[str] = field(default_factory=Counter)
    wrong: dict[tuple[str, str], str] = field(default_factory=dict)

    def note(self, method: str, statuses: Iterable[d.Status], call: "Call") -> None:
        for each in statuses:
            self.codes[code_name(each.code)] += 1
            is_allowed = each.code == d.NOT_IMPLEMENTED and method in NOT_IMPLEMENTED
            if each.code in SERVERS_FAULT and not is_allowed:
                self.add(method, code_name(each.code), each.message, call)

    def add(self, method: str, code: str, text: str, call: "Call") -> None:
        self.wrong.setdefault((method, f"{code} {text[:40]}"), f"{code} {text[:200]}: {call}")


@dataclass(frozen=True)
class Call:
    """One call."""

    number: int
    requests: list[bytes]

    def __str__(self) -> str:
        return f"call {self.number}, {self.requests[0][:300].hex()}"


async def gateway_fuzz(task: Task) -> Outcome:
    """Make 20,000 calls with odd fields: no code of 5xxxx, no traceback, bounded memory."""
    outcome = Outcome()
    local = FaultyCluster(task, gateway=0)
    async with local:
        assert local.gateway is not None
        pid = local.node("gateway").pid
        assert pid is not None
        fuzz = GatewayFuzz(local.gateway, local.nameservers, task.seed, pid)
        calls = task.count(CALLS)
        await fuzz.run(calls)
        outcome.breaks("memory", fuzz.grown(GROWTH_BYTES_MAX))
        outcome.injected, outcome.acknowledged = calls, fuzz.findings.codes["OK"]
        for (method, _), said in fuzz.findings.wrong.items():
            outcome.breaks(method, [said])
        outcome.breaks("at the end", local.unexpected_ends())
        for node in local.nodes:
            outcome.breaks(node.name, tracebacks(node.log_path))
        outcome.runs = len(fuzz.memory)
        outcome.notes.append(fuzz.summary())
    return outcome


class GatewayFuzz:
    """Makes calls of a gateway.

    Args:
        address: address of the gateway.
        nameservers: nameservers of its cluster.
        seed: decides each call, by its number.
        pid: of the gateway's process; None: its memory is not watched.
    """

    def __init__(
        self, address: str, nameservers: list[str], seed: int, pid: int | None = None
    ) -> None:
        self._address = address
        self._nameservers = nameservers
        self._seed = seed
        self._pid = pid
        # SendMessage has the most fields.
        self._methods = [*methods(), *(each for each in methods() if each.name == "SendMessage")]
        self.findings = Findings()
        self.memory: list[int] = []
        """Memory of the gateway in bytes, at equal distances between the calls."""

    async def run(self, calls: int) -> None:
        """Make this number of calls, and check that a usual client gets its messages."""
        async with rockoon.connect(self._nameservers) as cluster:
            await make_topics(cluster)
            await cluster.admin.create_topic("canary", queues_per_broker=1)
        numbers = iter(range(calls))
        step = max(1, calls // SAMPLES)
        async with WireClient(self._address, "canary") as client:
            requests = Requests(client)
            channels = [channel(self._address) for _ in range(4)]

            async def work() -> None:
                for number in numbers:
                    if number % step == 0 and self._pid is not None:
                        self.memory.append(resident_bytes(self._pid))
                    if number % (10 * step) == 0:
                        await self._canary(client, number)
                    await self._call(channels[number % len(channels)], requests, number)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(work())
            await self._canary(client, calls)
            for each in channels:
                await each.close()
        if self._pid is not None:
            self.memory.append(resident_bytes(self._pid))

    def grown(self, bytes_max: int) -> list[str]:
        """Return a sentence if the gateway's memory grew by more than the limit."""
        early, late = self.memory[len(self.memory) // 4], self.memory[-1]
        if late - early <= bytes_max:
            return []
        return [f"{late >> 20} MiB at the end, {early >> 20} MiB after a quarter of the calls"]

    def summary(self) -> str:
        """Return the number of replies by code, and the memory."""
        codes = ", ".join(f"{name} {n}" for name, n in self.findings.codes.most_common())
        memory = ", ".join(str(each >> 20) for each in self.memory)
        return f"{codes}; MiB: {memory}"

    async def _call(self, at: aio.Channel, requests: Requests, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        method = chance.choice(self._methods)
        call = Call(number, await self._bytes(method, requests, chance))
        caller = metadata(chance)
        try:
            statuses = await made(at, method, call, caller)
            if any(each.code == d.PROXY_TIMEOUT for each in statuses):
                # The machine may be slow; a caller's fault is repeated.
                statuses = await made(at, method, call, caller)
        except aio.AioRpcError as failure:
            status = failure.code().name
            self.findings.codes[status] += 1
            details = failure.details() or ""
            if status in GRPC_WRONG and details != ENDED:
                self.findings.add(method.name, status, details, call)
        else:
            self.findings.note(method.name, statuses, call)

    async def _bytes(
        self, method: MethodDescriptor, requests: Requests, chance: random.Random
    ) -> list[bytes]:
        """Return requests: mostly valid ones with odd fields, sometimes random bytes."""
        sent = chance.choice((1, 1, 3)) if method.client_streaming else 1
        found = []
        for _ in range(sent):
            valid = await requests.valid(method, chance)
            what = chance.random()
            if what < 0.85:
                found.append(OddFields(chance).odd(valid))
            elif what < 0.95:
                found.append(Maker(chance, {}).mutated(valid.SerializeToString()))
            else:
                found.append(chance.randbytes(chance.choice((0, 1, 3, 30, 500))))
        return found

    async def _canary(self, client: WireClient, number: int) -> None:
        """Send, receive and acknowledge as a usual client does."""
        consumer = Consumer(client, "canary", "canary")
        body = b"%d" % number
        answer = await client.send(message("canary", body))
        assert answer.status.code == d.OK, answer
        (received,) = await consumer.receive_all(1, batch_size=1)
        assert bodies([received]) == [body]
        settled = await consumer.acknowledge(handle(received))
        assert settled.status.code == d.OK, settled


def channel(address: str) -> aio.Channel:
    options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    return aio.insecure_channel(address, options)


def metadata(chance: random.Random) -> tuple[tuple[str, str], ...]:
    """Return headers of a call, seldom odd ones."""
    headers = {"x-mq-client-id": chance.choice(CLIENTS), "x-mq-language": "JAVA"}
    if chance.random() < 0.05:
        name = chance.choice(("x-mq-client-id", "x-mq-language", "x-mq-client-version"))
        headers[name] = chance.choice(("", " ", "x" * 255, "x" * 256, "x" * 4000, "a/b|c", "~"))
    return tuple(headers.items())


async def made(
    at: aio.Channel, method: MethodDescriptor, call: Call, caller: tuple[tuple[str, str], ...]
) -> list[d.Status]:
    """Make a call; return the statuses in its replies. Raises AioRpcError."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    of = GetMessageClass(method.output_type).FromString
    if method.client_streaming:
        stub: Any = at.stream_stream(path, response_deserializer=of)
        return await streamed(stub(given(call.requests), metadata=caller))
    if method.server_streaming:
        stub = at.unary_stream(path, response_deserializer=of)
        return await streamed(stub(call.requests[0], metadata=caller, timeout=CALL_SECONDS_MAX))
    stub = at.unary_unary(path, response_deserializer=of)
    return statuses_of(await stub(call.requests[0], metadata=caller, timeout=CALL_SECONDS_MAX))


async def given(requests: list[bytes]) -> AsyncIterator[bytes]:
    for each in requests:
        yield each


async def streamed(answers: Any) -> list[d.Status]:
    """Return the statuses that arrive in time; then cancel the call."""
    found: list[d.Status] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for each in answers:
                found += statuses_of(each)
    answers.cancel()
    return found


def statuses_of(answer: Any) -> list[d.Status]:
    """Return the statuses of a reply and of its entries."""
    if "status" not in answer.DESCRIPTOR.fields_by_name:
        return []
    found = [answer.status] if answer.HasField("status") else []
    return [*found, *(each.status for each in getattr(answer, "entries", ()))]


def code_name(code: int) -> str:
    return d.Code.Name(d.Code.ValueType(code)) if code in d.Code.values() else str(code)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def tracebacks(log: Path) -> list[str]:
    """Return the beginnings of the first few tracebacks in a log."""
    text = log.read_text(errors="replace")
    places = (text.find("Traceback"),) if "Traceback" in text else ()
    count_all = text.count("Traceback")
    return [
        f"{count_all} tracebacks: {' '.join(text[max(0, at - 300) : at + 3000].split())[-900:]}"
        for at in places
    ]
