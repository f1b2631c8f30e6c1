"""The error table and errors.proto name the same failures, and each survives the wire."""

import string
from dataclasses import dataclass
from typing import get_args

import grpc
import pytest

from rockoon_core import errors
from rockoon_core.errors import TABLE, BrokerUnavailable, Internal, RockoonError, from_wire
from rockoon_core.failed_call import from_rpc_error
from rockoon_proto.v1.errors_pb2 import Error


def test_every_code_in_the_proto_has_exactly_one_row() -> None:
    codes = set(Error.Code.values()) - {Error.UNSPECIFIED}
    assert set(TABLE) == codes
    assert len(RockoonError.__subclasses__()) == len(codes)


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.__name__)
def test_a_row_comes_back_from_the_wire_as_itself(row: type[RockoonError]) -> None:
    names = [name for _, name, _, _ in string.Formatter().parse(row.sentence) if name]
    details = {name: f"<{name}>" for name in names}
    raised = row(**details)
    returned = from_wire(Error.FromString(raised.to_wire().SerializeToString()))
    assert type(returned) is row
    assert str(returned) == str(raised)
    assert returned.details == details
    assert row.__name__.upper() == row(**details).name.replace("_", "")


def test_every_row_has_a_status_that_grpc_knows() -> None:
    known = set(grpc.StatusCode.__members__)
    assert {row.status for row in TABLE.values()} <= known
    assert set(get_args(errors.StatusName)) == known - {"OK"}


def test_rows_that_a_retry_can_mend_are_those_of_the_four_hundreds() -> None:
    for code, row in TABLE.items():
        waits = 400 <= code < 500 and row is not errors.Closed
        assert row.retriable == waits, row


def test_a_code_of_a_newer_version_becomes_internal() -> None:
    unknown = Error(code=499, message="something new")  # type: ignore[arg-type]
    assert isinstance(from_wire(unknown), Internal)


def test_a_connection_that_ends_under_what_is_sent_is_a_peer_that_does_not_answer() -> None:
    metadata = grpc.aio.Metadata()
    for details, row in (("Internal error from Core", BrokerUnavailable), ("a bug", Internal)):
        failure = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, metadata, metadata, details)
        assert type(from_rpc_error(failure, BrokerUnavailable, broker="broker-a")) is row


@dataclass
class Failure(grpc.RpcError):
    """A failed call that never reached a server."""


def test_a_peer_that_does_not_answer_becomes_the_row_asked_for() -> None:
    error = from_rpc_error(Failure(), BrokerUnavailable, broker="broker-a")
    assert str(error) == "broker 'broker-a' does not answer"
    assert error.retriable
