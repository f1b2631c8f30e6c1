"""Known faults of clients: a run fails on any other fault, and also if one of these no longer
occurs.
"""

from collections.abc import Mapping

from conformance.running import FAILED, Outcomes

# Language, scenario → why.
KNOWN_FAULTS: Mapping[tuple[str, str], str] = {
    ("Go", "late acknowledgement is refused"): (
        "Go's client ignores the answer to an acknowledgement (apache/rocketmq-clients issue 804)"
    ),
    ("Node.js", "priorities"): (
        "Node.js's client 1.0.8 treats a message of priority 0 as one without a priority "
        "(PublishingMessage asks whether the number is truthy)"
    ),
    ("C++", "push: dead letters"): (
        "C++'s push consumer 5.1.0 never stops retrying a message: there is no dead letter within "
        "two minutes"
    ),
    ("Rust", "signed calls over TLS"): "Rust's client 5.0.0 cannot connect with TLS",
}

# For the reason above, these programs do not learn that an acknowledgement was refused.
BLIND = ("Go",)


def unexpected(outcomes: Outcomes) -> list[str]:
    """Return the sentences for which a run against Rockoon's gateway fails.

    Args:
        outcomes: of all scenarios of the run.
    """
    found = []
    for language, mine in outcomes.items():
        for name, outcome in mine.items():
            is_known = (language, name) in KNOWN_FAULTS
            if outcome.kind == FAILED and not is_known:
                found.append(f"{language}, {name}: {outcome.said}")
            elif outcome.kind != FAILED and is_known:
                found.append(
                    f"{language}, {name}: a known fault of the client that fails no more: "
                    "take it out of tests/conformance/known_faults.py"
                )
    return found
