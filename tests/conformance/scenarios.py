"""The scenarios, in the order of the page: written once, run with clients of each language."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance import consuming, guarding, lite, producing, separating
from conformance.console_commands import console_commands
from conformance.scene import Scene


@dataclass(frozen=True)
class Scenario:
    """One row of the page.

    Attributes:
        name: what must happen.
        play: raises `Differs`, `ClientFailed` or `NotOffered` if the scenario fails.
        is_alone: no other scenario may use the target at the same time.
        is_guarded: runs on a target that requires signatures.
    """

    name: str
    play: Callable[[Scene], None]
    is_alone: bool = False
    is_guarded: bool = False


SCENARIOS: Sequence[Scenario] = (
    Scenario("send, receive, acknowledge", producing.carries_everything),
    Scenario("body of 1 MiB", producing.large_body),
    Scenario("body above 4 MiB is refused", producing.too_large_body),
    Scenario("unknown topic is refused", producing.unknown_topic),
    Scenario("message of another type is refused", producing.wrong_type),
    Scenario("FIFO: order of a message group", producing.fifo_order),
    Scenario("FIFO: order across languages", producing.fifo_across_languages),
    Scenario("delay", producing.delay),
    Scenario("recall of a delayed message", producing.recall),
    Scenario("transaction: commit, rollback", producing.transaction),
    Scenario("transaction: check of an orphan", producing.orphan),
    Scenario("unacknowledged messages are redelivered", consuming.unacknowledged),
    Scenario("change of the invisible time", consuming.change_invisible),
    Scenario("late acknowledgement is refused", consuming.late_acknowledgement),
    Scenario("filter by tag", consuming.tag_filter),
    Scenario("filter by SQL", consuming.sql_filter),
    Scenario("dead letters", consuming.dead_letters),
    Scenario("two consumers share", consuming.shared),
    Scenario("unknown group is created", consuming.unmade_group),
    Scenario("push consumer", consuming.push),
    Scenario("push: failed message is redelivered", consuming.push_retry),
    Scenario("push: FIFO order", consuming.push_fifo),
    Scenario("push: dead letters", consuming.push_dead_letters),
    Scenario("push: consumer is killed", consuming.push_killed),
    Scenario("console: thread stacks, verification", console_commands),
    Scenario("priorities", lite.priorities),
    Scenario("lite: push consumer", lite.push),
    Scenario("lite: failed message is redelivered", lite.push_retry),
    Scenario("lite: another consumer continues", lite.hand_over),
    Scenario("lite: from the first message", lite.begin),
    Scenario("lite: simple consumer", lite.simple),
    Scenario("namespaces", separating.apart),
    Scenario("namespaces: push consumer", separating.push),
    Scenario("namespaces: recall", separating.recall),
    Scenario("namespaces: check of an orphan", separating.orphan),
    Scenario("namespaces: dead letters", separating.dead_letters),
    Scenario("signed calls", guarding.signed, is_guarded=True),
    Scenario("signed calls over TLS", guarding.signed_over_tls, is_guarded=True),
    Scenario("restart of the server", consuming.restart, is_alone=True),
    Scenario("push: restart of the server", consuming.push_restart, is_alone=True),
)
