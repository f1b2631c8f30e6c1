"""Calls: caller, headers and deadline of a call; errors as statuses of replies.

Headers are RocketMQ's (x-mq-...). Headers that differ between languages are ignored: the clock in
x-mq-date-time (most put local time and call it UTC), and the words in x-mq-language.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

from rockoon_core.errors import RockoonError
from rockoon_core.valid_text import exception_text
from rockoon_format.names import topic_resource
from rockoon_gateway.codes import OK, Refusal, enum_name, status, status_of
from rockoon_gateway.signatures import Signatures
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code, Status
from rockoon_runtime.access.keys import Action, KnownKey, require
from rockoon_runtime.error_guard import method_name

log = logging.getLogger(__name__)

# The limit of topics and groups of a broker: clients that may create topics could create series
# without limit, and each uses memory of the metrics' collector.
SERIES_MAX = 10_000
OTHERS = "(others)"


class SeriesCounts:
    """Counts by the labels of a metric's series; those beyond the limit count as `OTHERS`."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str, count: int = 1) -> None:
        """Add to the count of a series, which always has the same number of labels."""
        if labels not in self._counts and len(self._counts) >= SERIES_MAX:
            labels = (OTHERS,) * len(labels)
        self._counts[labels] = self._counts.get(labels, 0) + count

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        return iter(self._counts.items())


CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
VERSION = "x-mq-client-version"
NAMESPACE = "x-mq-namespace"
AUTHORIZATION = "authorization"
DATE_TIME = "x-mq-date-time"
HEADERS = (CLIENT_ID, LANGUAGE, VERSION, NAMESPACE, AUTHORIZATION, DATE_TIME)
# The limit of a receiver's name at the offset service.
CLIENT_ID_BYTES_MAX = 255
# Longer texts are cut: they are for logs and tables.
TEXT_CHARACTERS_MAX = 255


# Not frozen: a frozen one costs a third of the time of reading the headers, for each call.
@dataclass(slots=True)
class GatewayCall:
    """One gRPC call of a client: its caller, headers and deadline.

    Attributes:
        client_id: as sent by the client; unique by convention.
        language: language of the header; empty without one.
        version: version of the client's SDK; empty without one.
        peer: the caller's address, as gRPC writes it.
        key: the access key that signed the call; None if calls need none.
        deadline: on the event loop's clock, seconds; None without one.
        checked: checks the signature again; returns the key with its present permissions.
        namespace: the header's, not checked, for resources without one: consumers of Node.js send
            it in the header alone.
    """

    client_id: str
    language: str
    version: str
    peer: str
    key: KnownKey | None
    deadline: float | None
    checked: Callable[[], KnownKey | None] = field(default=lambda: None, compare=False)
    namespace: str = ""

    def renewed(self) -> "GatewayCall":
        """Return the call with the present permissions of its key, which may change during a
        stream. Raises Refusal: UNAUTHORIZED.
        """
        return replace(self, key=self.checked())

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the client's timeout of the call; None without one."""
        if self.deadline is None:
            return None
        return max(self.deadline - asyncio.get_running_loop().time(), 0.0)

    def require(self, action: Action, resource: str) -> None:
        """Raise NotPermitted if the caller's key lacks a permission.

        Args:
            action: "read" (receive), "write" (send), or "see": any permission.
            resource: "topic:NAME" or "group:NAME".
        """
        if self.key is not None:
            require(self.key, action, resource)

    def require_topic(self, action: Action, topic: str) -> None:
        """Raise NotPermitted if the caller's key lacks a permission on a topic; for retry and dead
        letter topics, on their group.

        Args:
            action: as in `require`.
            topic: the name in the cluster.
        """
        if self.key is not None:
            require(self.key, action, topic_resource(topic))


class Callers:
    """Finds the caller of each gRPC call, and converts errors to statuses of replies.

    Args:
        signatures: checks signatures.

    Attributes:
        refused: number of calls with another status than OK, by method and code.
    """

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self.refused = SeriesCounts()

    def caller(self, context: Any) -> GatewayCall:
        """Return a context's call. Raises Refusal: CLIENT_ID_REQUIRED, or UNAUTHORIZED."""
        # These headers are text: only names that end with "-bin" have bytes.
        headers: dict[str, Any] = dict(context.invocation_metadata())
        checked = partial(
            self._signatures.checked, headers.get(AUTHORIZATION, ""), headers.get(DATE_TIME, "")
        )
        key = checked()
        client_id = headers.get(CLIENT_ID, "").strip()
        if not client_id:
            raise Refusal(Code.CLIENT_ID_REQUIRED, f"the call has no header {CLIENT_ID}")
        if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
            # Not cut: two clients could then have the same id.
            reason = f"{CLIENT_ID} has more than {CLIENT_ID_BYTES_MAX} bytes"
            raise Refusal(Code.BAD_REQUEST, reason)
        seconds: float | None = context.time_remaining()
        return GatewayCall(
            client_id,
            headers.get(LANGUAGE, "")[:TEXT_CHARACTERS_MAX],
            headers.get(VERSION, "")[:TEXT_CHARACTERS_MAX],
            context.peer(),
            key,
            None if seconds is None else asyncio.get_running_loop().time() + seconds,
            checked,
            headers.get(NAMESPACE, ""),
        )

    async def answered(
        self,
        method: Callable[[Any, GatewayCall], Awaitable[Any]],
        request: Any,
        context: Any,
        answer: type[Any],
    ) -> Any:
        """Call a method and return its reply; an exception becomes the status of an `answer`."""
        try:
            answered = await method(request, self.caller(context))
        except (Refusal, RockoonError) as error:
            answered = answer(status=status_of(error))
        except Exception as failure:
            log.exception("unexpected error, returned to the caller in %s (bug)", answer.__name__)
            answered = answer(status=status(Code.INTERNAL_SERVER_ERROR, exception_text(failure)))
        if answered.status.code != OK.code:
            self.count_refused(answer.__name__, answered.status)
        return answered

    def count_refused(self, method: str, refused: Status) -> None:
        """Count a call with another status than OK, by the protocol's name of call or reply."""
        request_code = method_name(method.removesuffix("Response"))
        self.refused.add(request_code, enum_name(Code, refused.code).lower())


def served(method: str, answer: type[Any]) -> Any:
    """Return a method of a servicer with `_callers` that runs `Callers.answered`.

    Args:
        method: path of the called method from the servicer, for example "_lookups.messages".
        answer: the reply's class.
    """
    find = attrgetter(method)

    async def serve(self: Any, request: Any, context: Any) -> Any:
        return await self._callers.answered(find(self), request, context, answer)

    return serve
