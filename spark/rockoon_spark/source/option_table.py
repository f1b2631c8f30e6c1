"""The options of `format("rockoon")`: one table of names for batch reads, streams and writes.

Spark's names of options are case-insensitive. Names of Spark's source for Kafka are accepted beside
Rockoon's own ones.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum


class OptionError(ValueError):
    """An option is missing, unknown or invalid."""


class Use(Enum):
    """Use of the data source; the value completes the sentence "an option of …"."""

    BATCH = "batch reads"
    STREAM = "streams"
    WRITE = "writes"


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    Args:
        name: as the documentation shows it.
        uses: the uses of the data source that have it.
        aliases: other names for it.
    """

    name: str
    uses: frozenset[Use]
    aliases: tuple[str, ...] = ()


_ALL = frozenset(Use)
_READS = _ALL - {Use.WRITE}
_BATCH = frozenset({Use.BATCH})
_STREAM = frozenset({Use.STREAM})

OF_S3 = (
    "s3Endpoint",
    "s3Region",
    "s3AccessKey",
    "s3SecretKey",
    "s3SessionToken",
    "s3Timeout",
)
OF_DIRECTORY = ("path", "broker", *OF_S3)
OF_SECURITY = (
    "tlsCa",
    "tlsCertificate",
    "tlsKey",
    "tlsServerName",
    "accessKey",
    "accessSecret",
    "accessSecretFile",
)
OF_CLUSTER = ("endpoint", "brokers", "onBrokerAway", *OF_SECURITY)

OPTIONS = (
    *(Option(name, _BATCH) for name in (*OF_DIRECTORY, "brokers", "onBrokerAway")),
    *(Option(name, _ALL) for name in ("endpoint", *OF_SECURITY)),
    Option("topics", _READS, ("topic", "subscribe")),
    *(
        Option(name, _READS)
        for name in (
            "topicPattern",
            "subscribePattern",
            "assign",
            "includeInternalTopics",
            "startingOffsets",
            "startingOffsetsByTimestamp",
            "startingTimestamp",
            "failOnDataLoss",
            "columns",
            "includeHeaders",
        )
    ),
    *(
        Option(name, _BATCH)
        for name in (
            "tags",
            "endingOffsets",
            "endingOffsetsByTimestamp",
            "endingTimestamp",
            "compacted",
            "onDamage",
            "splitBytes",
        )
    ),
    *(
        Option(name, _STREAM)
        for name in (
            "minOffsetsPerTrigger",
            "maxOffsetsPerTrigger",
            "maxTriggerDelay",
            "maxBytesPerTrigger",
            "minPartitions",
            "consumerGroup",
        )
    ),
    Option("topic", frozenset({Use.WRITE})),
    Option("idempotent", frozenset({Use.WRITE})),
    # Spark's own option of a streaming write.
    Option("checkpointLocation", frozenset({Use.WRITE})),
)
"""All options."""

_NAMES = frozenset(name.lower() for option in OPTIONS for name in (option.name, *option.aliases))
# Prefix of the second name of an option of a table.
_OF_TABLE = "option."


def given_options(options: Mapping[str, str], use: Use) -> dict[str, str]:
    """Return the given options of a use, by the option's own name in lower case.

    Topics that are given under several names are joined.

    Raises:
        OptionError: an option is unknown, or belongs to another use.
    """
    names = {
        name: option
        for option in OPTIONS
        if use in option.uses
        for name in (option.name, *option.aliases)
    }
    known = {name.lower(): option for name, option in names.items()}
    given: dict[str, str] = {}
    unknown = []
    for name, value in of_table(options).items():
        if name not in known:
            unknown.append(name)
            continue
        own = known[name].name.lower()
        given[own] = f"{given[own]},{value}" if own in given else value
    if unknown:
        raise OptionError(_unknown(sorted(unknown), use, names))
    return given


SECRETS = frozenset({"accesssecret", "s3secretkey", "s3sessiontoken"})
"""Options with secrets, in lower case."""


def is_of_table(options: Mapping[str, str]) -> bool:
    """True if Spark passes the properties of a table that is being created.

    False for a read with an option `provider`, whose other options have no second name.
    """
    names = {name.lower() for name in options}
    own = names & _NAMES - {"path"}
    return "provider" in names and names.issuperset(_OF_TABLE + name for name in own)


def of_table(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with names in lower case; of a table, only those of `OPTIONS (…)`.

    Spark passes to a table its properties, its location as `path` (also if it has none of its own),
    and each option twice, the second time with a prefix.
    """
    given = {name.lower(): value for name, value in options.items()}
    if not is_of_table(options):
        return given
    own = {
        name.removeprefix(_OF_TABLE): value
        for name, value in given.items()
        if name.startswith(_OF_TABLE)
    }
    # Spark turns an option `path` into the table's location, with file:/store for /store.
    if "endpoint" not in own and "path" in given:
        own["path"] = re.sub(r"^file:/(?!/)", "/", given["path"])
    return own


def _unknown(names: list[str], use: Use, known: Iterable[str]) -> str:
    others = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
    misplaced = [others[name] for name in names if name in others]
    if misplaced:
        option = misplaced[0]
        uses = " and ".join(each.value for each in Use if each in option.uses)
        return f"option {option.name} is an option of {uses}, not of {use.value}"
    return f"unknown options of {use.value}: {', '.join(names)}{nearest(names[0], known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence with the known name that is most similar; empty if none is."""
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def one_of(given: Mapping[str, str], name: str, default: str, other: str) -> str:
    """Return the value of an option that has two possible values.

    Raises:
        OptionError: it has another value.
    """
    chosen = given.get(name.lower(), default)
    if chosen.lower() not in (default, other):
        raise OptionError(f"option {name}: {chosen!r} is neither {default} nor {other}")
    return chosen.lower()
