"""A gateway from the manifests serves RocketMQ's clients; KEDA's trigger leads to its scaler."""

import re
from pathlib import Path

import pytest
import yaml
from deploy.manifests import ROOT, Overlay, build, name_of
from deploy.network import Place, lets_through, place_of
from deploy.pods import CA, CERTIFICATE, CLIENT_SECRETS, CLIENT_SECRETS_FILE, KEY, running

import rockoon
from gateway.wire_client import WireClient, message
from rockoon.admin.access_keys import Permission
from rockoon.net.access import AccessKey
from rockoon_core.channels import Tls
from rockoon_gateway.scaler import Trigger
from rockoon_gateway.signatures import signature_of
from rockoon_proto.apache.rocketmq.v2.definition_pb2 import Code
from support.eventually import answered

SCALING = ROOT.parents[1] / "docs/operate/scaling.md"
DATE = "20261120T154601Z"


def signed(key: AccessKey) -> dict[str, str]:
    """What RocketMQ's clients put into a call."""
    signature = signature_of(key.secret, DATE)
    scheme = f"MQv2-HMAC-SHA1 Credential={key.id}, SignedHeaders=x-mq-date-time"
    return {"x-mq-date-time": DATE, "authorization": f"{scheme}, Signature={signature}"}


async def test_a_client_of_rocketmq_sends_to_production_with_a_key_of_the_cluster(
    tmp_path: Path,
) -> None:
    """Over TLS, without a certificate, signed; the key's secret comes by the mounted Secret. An
    operator shows and changes the gateway's live settings."""
    overlay = build(ROOT / "overlays/production")
    with running(overlay, tmp_path, advertised_here=True) as (pods, secrets):
        place = secrets.directory("rockoon-client-tls")
        tls = Tls(ca=place / CA, certificate=place / CERTIFICATE, key=place / KEY)
        async with rockoon.connect(
            pods["nameserver"].node.address,
            cluster="rockoon",
            tls=tls,
            access=secrets.cluster_key,
        ) as cluster:
            await cluster.admin.create_topic("orders", queues_per_broker=1)
            permission = Permission.parse("topic:orders=write")
            key = await cluster.admin.access_keys.create("shop", [permission])
            (found,) = await cluster.admin.settings.set("gateway", "client_seconds_max", "60")
            value = next(each for each in found.settings if each.name == "client_seconds_max")
            assert (value.value, value.origin) == ("60.0", "live setting")
        gateway = pods["gateway"].node.address
        ca = secrets.directory("rockoon-gateway-tls") / CA
        name = "rockoon-gateway.rockoon.svc"
        async with WireClient(gateway, ca=ca, server_name=name, headers=signed(key)) as client:
            refused = await client.send(message("orders"))
            assert refused.status.code == Code.UNAUTHORIZED, "its secret is not there yet"
            file = secrets.directory(CLIENT_SECRETS) / CLIENT_SECRETS_FILE
            file.write_text(f"{key.id} {key.secret}\n")

            async def sent() -> Code:
                return (await client.send(message("orders"))).status.code

            assert await answered(sent, lambda code: code == Code.OK) == Code.OK


@pytest.fixture
def scaled(tmp_path: Path) -> Overlay:
    """Production with the external scaler."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(ROOT / "overlays/production")],
        "components": [str(ROOT / "components/gateway-scaler")],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(tmp_path)


def test_the_trigger_in_the_documents_leads_to_the_scaler(scaled: Overlay) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", SCALING.read_text(), re.DOTALL)
    scaled_object = yaml.safe_load(text)
    assert scaled_object["kind"] == "ScaledObject"
    (trigger,) = scaled_object["spec"]["triggers"]
    assert trigger["type"] == "external-push"
    metadata = dict(trigger["metadata"])
    host, _, port = metadata.pop("scalerAddress").partition(":")
    service = scaled.named("Service", host.partition(".")[0])
    assert host == f"{name_of(service)}.{scaled.namespace}.svc"
    exposed = {str(each["port"]): each["targetPort"] for each in service["spec"]["ports"]}
    (found,) = [each for each in scaled.services() if name_of(each[0]) == "rockoon-gateway"]
    target = place_of(found[0], scaled.namespace)
    listened = scaled.settings(*found).value.scaler_listen
    assert listened == f"0.0.0.0:{target.ports[exposed[port]]}"
    parsed = Trigger.parse(metadata)
    assert (parsed.group, parsed.topic, parsed.lag_threshold) == ("billing", "orders", 100)


def test_the_scaler_is_asked_by_keda_s_operator_alone(scaled: Overlay) -> None:
    target = place_of(scaled.named("Deployment", "rockoon-gateway"), scaled.namespace)
    callers = {
        name: lets_through(scaled, place, target, target.ports["scaler"])
        for name, place in {
            "KEDA": Place({"app": "keda-operator"}, "keda"),
            "a client": Place({"rockoon-client": "true"}, scaled.namespace),
            "RocketMQ's client": Place({"rockoon-gateway-client": "true"}, "shop"),
            "outside": Place(),
        }.items()
    }
    assert [name for name, may in callers.items() if may] == ["KEDA"]
