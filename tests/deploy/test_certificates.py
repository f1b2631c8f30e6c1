"""TLS in the manifests: settings name the mounted files, and certificates the called names."""

import pytest
from deploy.manifests import ROOT, Document, Overlay, build, containers, name_of, service_of
from deploy.pods import (
    CA,
    CERTIFICATE,
    CLIENT_SECRETS,
    CLUSTER_SECRET,
    KEY,
    certificates,
    secret_mounts,
)

from rockoon.net.tls import from_environment
from rockoon_core.errors import WrongIdentity
from rockoon_runtime.tls import NodeIdentities
from rockoon_spark.commands.arguments import parser

# The operator of etcd creates this one.
OF_ETCD = "rockoon-etcd-client-tls"
# No certificate at all.
OF_ACCESS = {"rockoon-client-access", CLIENT_SECRETS, CLUSTER_SECRET}
OF_CLIENTS = "rockoon-client-tls"


@pytest.fixture
def production() -> Overlay:
    return build(ROOT / "overlays/production")


def in_secrets(workload: Document, container: Document) -> set[str]:
    return {
        f"{place}/{name}"
        for place, secret in secret_mounts(workload, container).items()
        if secret not in OF_ACCESS
        for name in (CERTIFICATE, KEY, CA)
    }


def host(address: str) -> str:
    return address.rpartition(":")[0]


def test_files_that_settings_name_are_those_of_mounted_secrets(production: Overlay) -> None:
    for workload, container in production.services():
        settings = production.settings(workload, container).value
        named = {
            str(getattr(settings, name))
            for name in settings.__dataclass_fields__
            if "tls_" in name and name.endswith(("_ca", "_certificate", "_key"))
        }
        mounted = in_secrets(workload, container)
        if service_of(container) == "gateway":
            # RocketMQ's clients show no certificate: it asks for none, and shows its own inside.
            assert (settings.tls, settings.cluster_tls) == ("on", "mutual")
            assert named == mounted - {f"/tls/{CA}"} | {str(None)}
            # Operators call pods at their addresses.
            assert settings.admin_tls_server_name in certificates()["rockoon-gateway-tls"][1]
        else:
            assert settings.tls == "mutual"
            assert named == mounted
        assert settings.tls_health_listen == f"0.0.0.0:{container['livenessProbe']['grpc']['port']}"


def test_secrets_that_are_mounted_are_made_by_certificates_that_ask_for_them(
    production: Overlay,
) -> None:
    mounted = {
        secret
        for workload in [*production.workloads, *production.jobs]
        for container in containers(workload)
        for secret in secret_mounts(workload, container).values()
    }
    assert mounted - {OF_ETCD, *OF_ACCESS} == certificates().keys() - {"rockoon-authority"}


def test_certificates_bear_the_names_that_are_called_and_no_others(production: Overlay) -> None:
    made = certificates()
    called = set()
    for workload, container in production.services():
        others = {OF_ETCD, OF_CLIENTS, *OF_ACCESS}
        (secret,) = {*secret_mounts(workload, container).values()} - others
        if workload["kind"] == "StatefulSet":
            # As many as there are with components/offset-copies; those of brokers are three.
            pods = range(max(3, workload["spec"]["replicas"]))
            settings = [production.settings(workload, container, pod).value for pod in pods]
            names = [host(each.advertise) for each in settings]
            # The log's, where they are its copies.
            names.append(f"{name_of(workload)}.{names[0].partition('.')[2]}")
            assert names == made[secret][1]
            called |= {host(each) for pod in settings for each in pod.nameservers}
    for job in production.jobs:
        for container in containers(job):
            called.add(host(parser("rockoon spark").parse_args(container["args"]).endpoint))
    assert called == {"rockoon-nameserver"}
    # Called by a Service's name, from any namespace.
    for name in ("rockoon-nameserver", "rockoon-gateway"):
        ways = [name, f"{name}.{production.namespace}", f"{name}.{production.namespace}.svc"]
        assert made[f"{name}-tls"][1] == [*ways, f"{ways[-1]}.cluster.local"]


def test_a_node_registers_under_the_name_of_a_pod_of_its_own_kind(production: Overlay) -> None:
    (found,) = [each for each in production.services() if service_of(each[1]) == "nameserver"]
    identities = NodeIdentities(production.settings(*found).value.tls_node_name)
    made = certificates()
    pods = {"rockoon-broker-tls": "rockoon-broker-0", "rockoon-offset-tls": "rockoon-offset-0"}
    for secret, (common_name, names) in made.items():
        for other, pod in pods.items():
            if secret == other:
                identities.check(pod, [common_name, *names])
            else:
                with pytest.raises(WrongIdentity):
                    identities.check(pod, [common_name, *names])


def test_jobs_show_a_certificate(production: Overlay) -> None:
    assert production.jobs
    for job in production.jobs:
        for container in containers(job):
            tls = from_environment(production.environment(job, container))
            assert tls is not None
            assert {str(tls.ca), str(tls.certificate), str(tls.key)} == in_secrets(job, container)
            assert "rockoon-client-tls" in secret_mounts(job, container).values()
