"""Names of the columns of `format("rockoon")`, and the options that choose columns."""

from collections.abc import Mapping

from rockoon_spark.source.option_table import OptionError, nearest, one_of

COLUMN_NAMES = (
    "topic",
    "broker",
    "queue",
    "queue_offset",
    "physical_offset",
    "keys",
    "tags",
    "body",
    "properties",
    "born_time",
    "store_time",
    "born_host",
    "store_host",
    "reconsume_times",
    "prepared_offset",
    "flag",
    "sys_flag",
    "size",
    "message_id",
    "unique_key",
)
"""Names of `rockoon_spark.records.columns.COLUMNS`, whose import costs more than a plan."""


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """Parse options columns and includeHeaders; all columns if neither is set.

    Raises:
        OptionError: a column is unknown or named twice, or the options contradict each other.
    """
    known = ", ".join(COLUMN_NAMES)
    text = given.get("columns", known)
    names = tuple(name.strip() for name in text.split(","))
    wrong = [name for name in names if name not in COLUMN_NAMES]
    if wrong or len(set(names)) < len(names):
        hint = nearest(wrong[0], COLUMN_NAMES) if wrong else ""
        raise OptionError(f"option columns: {', '.join(wrong) or text}: choose from {known}{hint}")
    if "includeheaders" not in given:
        return names
    if one_of(given, "includeHeaders", "false", "true") == "true":
        return names if _HEADERS in names else (*names, _HEADERS)
    if "columns" in given and _HEADERS in names:
        raise OptionError(f"option includeHeaders=false contradicts column {_HEADERS}")
    return tuple(name for name in names if name != _HEADERS)


# Column with the counterpart of Kafka's headers.
_HEADERS = "properties"
