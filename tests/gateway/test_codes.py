"""Each error of the table has a code of the protocol, and a caller's fault has one of 4xxxx."""

import pytest

from rockoon_core import errors
from rockoon_gateway.codes import BY_ERROR, TEXT_CHARACTERS_MAX, code_of, status
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from rockoon_proto.v1.errors_pb2 import Error

# Not retriable, but no caller of a gateway causes them: the gateway's own connection and producer,
# other nodes, and faults that an operator repairs.
SERVERS = frozenset(
    {
        Error.WRONG_CLUSTER,
        Error.NODE_NAME_TAKEN,
        Error.SEQUENCE_GAP,
        Error.SEQUENCE_UNKNOWN,
        Error.INDEX_OFF,
        Error.LOG_FROZEN,
        Error.NO_EXTERNAL_ADDRESS,
        Error.CLOSED,
        Error.INTERNAL,
        Error.STORE_FAILED,
        Error.STORE_CORRUPT,
        Error.STORE_LOCKED,
        Error.TLS_FAILED,
        Error.WRONG_IDENTITY,
    }
)
# Retriable, but only after the topic has a writable queue, or its reader has left.
CONFLICTS = frozenset({Error.NO_WRITABLE_QUEUE, Error.QUEUE_HELD})


@pytest.mark.parametrize("number", sorted(set(Error.Code.values()) - {Error.UNSPECIFIED}))
def test_each_error_has_a_code_of_the_caller_or_of_the_server(number: int) -> None:
    error = errors.from_wire(Error(code=Error.Code.ValueType(number), message="a test"))
    assert error.code == number, "the table has no row"
    code = code_of(error)
    if number in SERVERS:
        assert 50_000 <= code < 60_000
    elif error.retriable and number not in CONFLICTS:
        assert code == Code.TOO_MANY_REQUESTS or 50_000 <= code < 60_000
    else:
        assert 40_000 <= code < 50_000
        assert code != Code.TOO_MANY_REQUESTS


def test_there_is_no_code_for_what_is_no_error_of_the_table() -> None:
    assert set(BY_ERROR) == set(errors.TABLE.values())


def test_a_store_under_pressure_throttles_and_a_full_disk_does_not() -> None:
    pressure = errors.StoreNotWritable(reason="91 % full", cause=errors.PRESSURE)
    assert code_of(errors.from_wire(pressure.to_wire())) == Code.TOO_MANY_REQUESTS
    full = errors.StoreNotWritable(reason="no space left")
    assert code_of(errors.from_wire(full.to_wire())) == Code.INTERNAL_SERVER_ERROR


def test_a_text_fits_a_header() -> None:
    said = status(Code.BAD_REQUEST, "x" * 70_000).message
    assert said == f"BAD_REQUEST: {'x' * TEXT_CHARACTERS_MAX}..."
