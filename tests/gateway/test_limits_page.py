"""docs/use/gateway-limits.md has the numbers of the code, and a row for each error."""

import re
from pathlib import Path

from rockoon_format.hashes import TAG_HASHES_MAX
from rockoon_format.names import GROUP_BYTES_MAX, LITE_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX
from rockoon_format.sql92 import CHARACTERS_MAX
from rockoon_gateway.calls import CLIENT_ID_BYTES_MAX
from rockoon_gateway.clients import client_settings
from rockoon_gateway.codes import BY_ERROR
from rockoon_gateway.consoles.groups_report import TOPICS_MAX
from rockoon_gateway.consuming import receive_rules
from rockoon_gateway.consuming.handles import HANDLE_CHARACTERS_MAX
from rockoon_gateway.consuming.settling import ENTRIES_MAX
from rockoon_gateway.names import DURATION_SECONDS_MAX
from rockoon_gateway.producing import message_checks
from rockoon_gateway.producing.sending import HALF_MESSAGES_MAX
from rockoon_gateway.routes import ADDRESSES_MAX, HOST_CHARACTERS_MAX
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.errors_pb2 import Error

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "gateway-limits.md").read_text()
LIMITS, CODES = PAGE.split("## Codes for errors of the cluster")
FIGURES = {
    "topic": [TOPIC_BYTES_MAX],
    "group": [GROUP_BYTES_MAX],
    "client id (header)": [CLIENT_ID_BYTES_MAX],
    "endpoints": [ADDRESSES_MAX, HOST_CHARACTERS_MAX],
    "bodies of one request, unpacked": [message_checks.BODIES_BYTES_MAX >> 20],
    "message id": [message_checks.MESSAGE_ID_BYTES_MAX],
    "user properties": [message_checks.USER_PROPERTIES_MAX],
    "user properties, tag and keys together": [message_checks.PROPERTIES_BYTES_MAX],
    "message group": [message_checks.MESSAGE_GROUP_BYTES_MAX],
    "lite topic": [LITE_TOPIC_BYTES_MAX],
    "born host": [message_checks.BORN_HOST_BYTES_MAX],
    "trace context": [message_checks.TRACE_CONTEXT_BYTES_MAX],
    "recovery duration of a transaction": [message_checks.RECOVERY_SECONDS_MAX],
    "half messages of one request": [HALF_MESSAGES_MAX],
    "invisible duration": [
        receive_rules.INVISIBLE_MS_MIN // 1000,
        receive_rules.INVISIBLE_MS_MAX // 3_600_000,
    ],
    "long polling timeout": [
        int(receive_rules.POLL_SECONDS_MIN),
        int(receive_rules.POLL_SECONDS_MAX),
    ],
    "filter": [receive_rules.FILTER_CHARACTERS_MAX, TAG_HASHES_MAX, CHARACTERS_MAX],
    "entries of one acknowledgement": [ENTRIES_MAX],
    "receipt handle": [HANDLE_CHARACTERS_MAX],
    "settings": [client_settings.SETTINGS_BYTES_MAX >> 10, client_settings.TOPICS_MAX],
    "client properties": [
        client_settings.CLIENT_PROPERTIES_MAX,
        client_settings.CLIENT_PROPERTY_BYTES_MAX,
        client_settings.CLIENT_PROPERTIES_BYTES_MAX,
    ],
    "topics of one report of the Admin service": [TOPICS_MAX],
    "any duration": [DURATION_SECONDS_MAX],
}


def rows(table: str) -> dict[str, list[str]]:
    """Return the other cells of each row of a table, by the first cell."""
    lines = [
        re.split(r"(?<!\\) \| ", line[2:-2]) for line in table.splitlines() if line[:2] == "| "
    ]
    return {first: others for first, *others in lines[1:]}


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    found = rows(LIMITS)
    for field, figures in FIGURES.items():
        named = re.findall(r"\d[\d,]*", found[field][0])
        assert {f"{each:,}" for each in figures} <= {each.rstrip(",") for each in named}, field


def test_codes_of_the_page_are_codes_of_the_protocol() -> None:
    for _, codes in rows(LIMITS).values():
        for name in re.findall(r"[A-Z]+_[A-Z_]+", codes):
            assert name in set(Code.keys())


def test_each_error_is_in_the_row_of_its_code() -> None:
    found = {first.split()[0]: set(others[0].split(", ")) for first, others in rows(CODES).items()}
    expected: dict[str, set[str]] = {}
    for error, code in BY_ERROR.items():
        expected.setdefault(Code.Name(code), set()).add(Error.Code.Name(error.code))
    assert found == expected
