"""The table of a group's settings, compared with the wire."""

import pytest

from rockoon_core.group_settings import GROUP_SETTINGS, Value
from rockoon_proto.v1.nameserver_pb2 import GroupConfig

# Settings with a special form: see the table's module.
WITHOUT_ROW = {"name", "start_policy", "consume_disabled", "attributes", "retry_delays_ms"}
ROWS = {row.name: row for row in GROUP_SETTINGS}


def test_every_field_of_a_groups_configuration_has_a_row_or_a_form_of_its_own() -> None:
    fields = {field.name for field in GroupConfig.DESCRIPTOR.fields}
    assert fields == ROWS.keys() | WITHOUT_ROW


@pytest.mark.parametrize("name", ROWS)
def test_what_a_row_says_is_what_the_field_takes(name: str) -> None:
    row = ROWS[name]
    assert row.get(GroupConfig()) is None
    assert row.fault(GroupConfig()) == ""
    field = GroupConfig.DESCRIPTOR.fields_by_name[name]
    settings: dict[Value, Value]
    if field.type == field.TYPE_BOOL:
        assert field.has_presence
        settings = {"yes": True, "no": False}
    elif field.enum_type is None:
        assert field.has_presence
        settings = {0: 0, row.maximum: row.maximum}
    else:
        # All but the one that says nothing, each with one word.
        names = [value.name for value in field.enum_type.values if value.number]
        assert sorted(map(str, row.words.values())) == sorted(names)
        settings = dict(row.words.items())
    for value, wire in settings.items():
        config = GroupConfig(**{name: wire})  # type: ignore[arg-type]
        assert row.get(config) == value
        assert row.fault(config) == ""
    assert row.default is None or row.default in settings or 0 <= int(row.default) <= row.maximum


def test_values_that_nobody_knows_are_a_fault_and_shown_as_none() -> None:
    config = GroupConfig(below_min=99, retry_queues=4_097)  # type: ignore[arg-type]
    assert ROWS["below_min"].fault(config) == "below_min 99 is not known"
    assert ROWS["below_min"].get(config) is None
    assert ROWS["retry_queues"].fault(config) == "retry_queues 4097: 0 to 4096"
    assert ROWS["retry_attempts_max"].fault(GroupConfig(retry_attempts_max=-1))
