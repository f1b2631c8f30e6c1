"""The NetworkPolicies allow exactly the connections that a cluster needs."""

import pytest
from deploy.manifests import ROOT, Overlay, build, name_of, overlays
from deploy.network import Place, lets_through, place_of

GRPC = {
    "rockoon-nameserver": 9876,
    "rockoon-broker": 10911,
    "rockoon-offset": 10912,
    "rockoon-gateway": 8081,
}
GATEWAY = "rockoon-gateway"
# Pairs of caller and called service, by docs/understand/architecture.md.
CALLS = {
    ("rockoon-broker", "rockoon-nameserver"),
    ("rockoon-offset", "rockoon-nameserver"),
    ("rockoon-offset", "rockoon-broker"),
    (GATEWAY, "rockoon-nameserver"),
    (GATEWAY, "rockoon-broker"),
    (GATEWAY, "rockoon-offset"),
}


@pytest.fixture(params=overlays())
def overlay(request: pytest.FixtureRequest) -> Overlay:
    return build(ROOT / "overlays" / request.param)


@pytest.fixture
def places(overlay: Overlay) -> dict[str, Place]:
    """Return all possible callers and called pods."""
    namespace = overlay.namespace
    return {name_of(each): place_of(each, namespace) for each in overlay.workloads} | {
        "a client of ours": Place({"rockoon-client": "true"}, namespace),
        "a client elsewhere": Place({"rockoon-client": "true"}, "shop"),
        "RocketMQ's client here": Place({"rockoon-gateway-client": "true"}, namespace),
        "RocketMQ's client elsewhere": Place({"rockoon-gateway-client": "true"}, "shop"),
        "a stranger here": Place({}, namespace),
        "a stranger elsewhere": Place({}, "shop"),
        "Prometheus": Place({"rockoon-monitoring": "true"}, "monitoring"),
        "outside": Place(),
    }


def test_services_are_called_by_those_who_need_them(
    overlay: Overlay, places: dict[str, Place]
) -> None:
    callers = {
        (source, target)
        for source in places
        for target, port in GRPC.items()
        if source != target and lets_through(overlay, places[source], places[target], port)
    }
    clients = {name for name in places if name.startswith("a client")}
    of_rocketmq = {(name, GATEWAY) for name in places if name.startswith("RocketMQ's client")}
    served = GRPC.keys() - {GATEWAY}
    assert callers == CALLS | of_rocketmq | {(c, target) for c in clients for target in served}


def test_settings_of_gateways_are_changed_by_clients_of_the_cluster(
    overlay: Overlay, places: dict[str, Place]
) -> None:
    target = places[GATEWAY]
    callers = {
        name
        for name, place in places.items()
        if lets_through(overlay, place, target, target.ports["admin"])
    }
    assert callers == {"a client of ours", "a client elsewhere"}


def test_metrics_are_read_by_what_collects_them(overlay: Overlay, places: dict[str, Place]) -> None:
    for target in GRPC:
        port = places[target].ports["metrics"]
        readers = {
            source
            for source, place in places.items()
            if lets_through(overlay, place, places[target], port)
        }
        assert readers == {"Prometheus"}


def test_etcd_is_called_by_nameservers(overlay: Overlay, places: dict[str, Place]) -> None:
    etcd = "rockoon-etcd" if "rockoon-etcd" in places else "outside"
    callers = {
        source
        for source, place in places.items()
        if source != etcd and lets_through(overlay, place, places[etcd], 2379)
    }
    if etcd == "outside":
        callers &= set(GRPC)
    assert callers == {"rockoon-nameserver"}


def test_a_service_goes_nowhere_else(overlay: Overlay, places: dict[str, Place]) -> None:
    for name in GRPC:
        assert lets_through(overlay, places[name], places["outside"], 53)
        assert not lets_through(overlay, places[name], places["outside"], 443)


def test_jobs_may_call_the_cluster(overlay: Overlay, places: dict[str, Place]) -> None:
    for job in overlay.jobs:
        for target in GRPC.keys() - {GATEWAY}:
            port = GRPC[target]
            source = place_of(job, overlay.namespace)
            assert lets_through(overlay, source, places[target], port), name_of(job)
