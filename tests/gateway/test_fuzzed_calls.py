"""Calls with odd fields are refused with a code of 4xxxx, and usual clients are not affected.

`make faults ONLY=gateway-fuzz` makes 20,000, and watches the memory and the logs of each process.
"""

import logging

import pytest
from faults.gateway_fuzz import GatewayFuzz

from gateway.gateways import RunningGateway
from rockoon.local.cluster import LocalCluster
from support.seeds import seeds

CALLS = 400


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(1))
async def test_no_call_with_odd_fields_is_the_servers_fault(
    gateway: RunningGateway,
    local_cluster: LocalCluster,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    caplog.set_level(logging.ERROR)
    fuzz = GatewayFuzz(gateway.address, local_cluster.nameservers, seed)
    await fuzz.run(CALLS)
    assert fuzz.findings.wrong == {}
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []
    assert fuzz.findings.codes["OK"] > CALLS / 10
