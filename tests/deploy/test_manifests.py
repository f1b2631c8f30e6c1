"""The Kubernetes manifests: the API accepts them, and they name existing parts of the services."""

from collections.abc import Mapping

import kubernetes_validate
import pytest
from deploy.manifests import (
    POD_IP,
    ROOT,
    SETTINGS,
    Document,
    Overlay,
    build,
    containers,
    name_of,
    overlays,
    pod_of,
    service_of,
)
from deploy.network import selects

from rockoon_nameserver.settings import NameserverSettings
from rockoon_runtime.settings import SettingsError, load
from rockoon_runtime.wire import LIVENESS
from rockoon_spark.commands.arguments import parser

# Settings of the pod security standard `restricted`; other tests check its rest for each pod.
RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
LEAST_KUBERNETES = "1.30"
DEPLOY = ROOT.parents[1] / "docs/operate/deploy.md"
# Share of a node's cores for the kubelet, the network plug-in and one DNS server.
SYSTEM_MILLICORES = 250


@pytest.fixture(params=overlays())
def overlay(request: pytest.FixtureRequest) -> Overlay:
    return build(ROOT / "overlays" / request.param)


def build_component(name: str) -> Overlay:
    return build(ROOT / "components" / name)


def test_the_api_takes_every_manifest(overlay: Overlay) -> None:
    for version in (LEAST_KUBERNETES, kubernetes_validate.latest_version()):
        for document in overlay.documents:
            kubernetes_validate.validate(document, version, strict=True)


def test_what_kubernetes_there_has_to_be_is_said() -> None:
    """The first version with `preStop.sleep` by default (KEP-3960)."""
    assert f"Kubernetes must be {LEAST_KUBERNETES} or newer" in DEPLOY.read_text()


def test_an_unknown_field_would_be_noticed(overlay: Overlay) -> None:
    workload = overlay.workloads[0]
    containers(workload)[0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workload, kubernetes_validate.latest_version(), strict=True)


def test_a_job_fits_on_a_node_of_two_cores_beside_one_pod_of_each_service(
    overlay: Overlay,
) -> None:
    def millicores(document: Document) -> int:
        cpus = [str(each["resources"]["requests"]["cpu"]) for each in containers(document)]
        return sum(int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000 for cpu in cpus)

    component = [build_component(name) for name in ("load-test", "resources", "spark-jobs")]
    services = sum(millicores(each) for each in overlay.workloads)
    for job in [each for made in component for each in made.jobs]:
        assert services + millicores(job) <= 2000 - SYSTEM_MILLICORES, name_of(job)


def test_every_setting_exists_and_may_have_its_value(overlay: Overlay) -> None:
    services = overlay.services()
    assert {service_of(container) for _, container in services} == set(SETTINGS)
    for workload, container in services:
        service = service_of(container)
        settings = overlay.settings(workload, container)
        prefix = f"ROCKOON_{service.upper()}_"
        given = {
            name for name in overlay.environment(workload, container) if name.startswith("ROCKOON_")
        }
        assert given == {
            name for name in given if settings.sources[name.removeprefix(prefix).lower()]
        }
        assert settings.value.name == f"{name_of(workload)}-0"


def test_every_port_is_one_that_the_service_listens_on(overlay: Overlay) -> None:
    services = {name_of(each): each for each in overlay.of_kind("Service")}
    for workload, container in overlay.services():
        settings = overlay.settings(workload, container).value
        port = int(settings.listen.rpartition(":")[2])
        assert settings.listen.startswith("0.0.0.0:")
        listened = {"grpc": settings.listen, "metrics": settings.metrics_listen}
        if settings.tls_health_listen:
            listened["health"] = settings.tls_health_listen
        if service_of(container) == "gateway":
            listened["admin"] = settings.admin_listen
            assert settings.admin_advertise == settings.admin_listen.replace("0.0.0.0", POD_IP)
        named = {each["name"]: f"0.0.0.0:{each['containerPort']}" for each in container["ports"]}
        assert named == listened
        # Probes know no TLS.
        probed = int(listened.get("health", settings.listen).rpartition(":")[2])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["grpc"]["port"] == probed
        (exposed,) = services[name_of(workload)]["spec"]["ports"]
        assert (exposed["port"], exposed["targetPort"]) == (port, "grpc")
        # A gateway sends clients the address that they have called.
        if service_of(container) != "gateway":
            assert settings.advertise.endswith(f":{port}")


def test_probes_ask_what_kubernetes_does_about_the_answer(overlay: Overlay) -> None:
    """A pod that is not ready gets no calls; a pod that is not alive is killed. A broker that
    recovers its store, or drains, must not be killed."""
    for workload, container in overlay.services():
        assert container["livenessProbe"]["grpc"]["service"] == LIVENESS
        for probe in ("startupProbe", "readinessProbe"):
            assert container[probe]["grpc"].get("service", "") == "", "readiness, of everything"
        # The duration of a start depends on the recovery: minutes, and for a log's tail up to an
        # hour.
        startup = container["startupProbe"]
        minutes = startup["periodSeconds"] * startup["failureThreshold"] / 60
        assert minutes >= (60 if name_of(workload) == "rockoon-broker" else 2)


def test_what_a_service_calls_is_there(overlay: Overlay) -> None:
    services = {
        f"{name_of(each)}:{port['port']}"
        for each in overlay.of_kind("Service")
        for port in each["spec"]["ports"]
    }
    for workload, container in overlay.services():
        settings = overlay.settings(workload, container).value
        called = getattr(settings, "nameservers", None) or settings.etcd
        # An etcd that production brings itself has members with names of their own.
        assert set(called) <= services or all(each.startswith("etcd-") for each in called)


def test_what_brokers_tell_clients_is_a_name_that_stays(overlay: Overlay) -> None:
    for workload, container in overlay.services():
        if workload["kind"] == "StatefulSet":
            settings = overlay.settings(workload, container).value
            assert settings.advertise.startswith(
                f"{settings.name}.{workload['spec']['serviceName']}.{overlay.namespace}.svc:"
            )
            assert workload["spec"]["serviceName"] in map(name_of, overlay.of_kind("Service"))


def test_stores_lie_on_disks_that_stay(overlay: Overlay) -> None:
    for workload, container in overlay.services():
        settings = overlay.settings(workload, container).value
        if workload["kind"] == "StatefulSet":
            claims = {name_of(each) for each in workload["spec"]["volumeClaimTemplates"]}
            (mount,) = [m for m in container["volumeMounts"] if m["name"] in claims]
            assert str(settings.store_path).startswith(mount["mountPath"] + "/")


def test_a_pod_has_the_time_to_drain(overlay: Overlay) -> None:
    for workload, container in overlay.services():
        settings = overlay.settings(workload, container).value
        pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        grace = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        # After the drain comes the time that the disk needs.
        assert pause + settings.drain_seconds_max <= grace / 2


def test_an_upgrade_waits_until_clients_have_found_a_pod_again(overlay: Overlay) -> None:
    for workload, container in overlay.services():
        spec = workload["spec"]
        if workload["kind"] == "Deployment":
            # In no route: the others run before it stops, and no client is sent to it any more
            # before it gets SIGTERM.
            rolling = spec["strategy"]["rollingUpdate"]
            assert (rolling["maxUnavailable"], rolling["maxSurge"]) == (0, 1)
            probe = container["readinessProbe"]
            assert container["lifecycle"]["preStop"]["sleep"]["seconds"] >= probe["periodSeconds"]
        else:
            # Clients get the pods' addresses from the routes, which also name starting and stopping
            # pods.
            (service,) = [
                each for each in overlay.of_kind("Service") if name_of(each) == spec["serviceName"]
            ]
            assert service["spec"]["publishNotReadyAddresses"]
        if workload["kind"] == "Deployment" or name_of(workload) == "rockoon-broker":
            assert spec["minReadySeconds"] >= container["readinessProbe"]["periodSeconds"]
        assert spec.get("updateStrategy", {}).get("type", "RollingUpdate") == "RollingUpdate"


def test_images_that_were_built_here_are_run_and_no_stranger_s(overlay: Overlay) -> None:
    """Without a tag the policy is Always, which fetches; dev's are on the nodes or nowhere."""
    policies = {"rockoon-dev": "Never"}
    for workload in [*overlay.workloads, *overlay.jobs]:
        for container in containers(workload):
            assert container["image"].partition(":")[2] not in ("", "latest")
            expected = policies.get(overlay.namespace, "IfNotPresent")
            assert container.get("imagePullPolicy", "IfNotPresent") == expected


def test_namespaces_refuse_pods_that_could_do_more_than_ours_need(overlay: Overlay) -> None:
    (namespace,) = overlay.of_kind("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for workload in [*overlay.workloads, *overlay.jobs]:
        pod = pod_of(workload)["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for volume in pod.get("volumes", []):
            assert volume.keys() - {"name"} <= RESTRICTED_VOLUMES


def test_nothing_runs_as_root_or_writes_beside_its_disk(overlay: Overlay) -> None:
    for workload in [*overlay.workloads, *overlay.jobs]:
        pod = pod_of(workload)["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"], "none of ours calls Kubernetes"
        for container in containers(workload):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_pods_are_told_of_no_services_by_variables(overlay: Overlay) -> None:
    """Kubernetes sets ROCKOON_NAMESERVER_SERVICE_HOST for Service rockoon-nameserver, a setting
    that does not exist: no service would start."""
    told = {"ROCKOON_NAMESERVER_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(SettingsError, match="unknown setting 'service_host'"):
        load(NameserverSettings, "nameserver", environment=told, arguments={})
    for workload in [*overlay.workloads, *overlay.jobs]:
        assert pod_of(workload)["spec"]["enableServiceLinks"] is False, name_of(workload)


def test_every_container_says_what_it_needs(overlay: Overlay) -> None:
    for workload in [*overlay.workloads, *overlay.jobs]:
        for container in containers(workload):
            resources = container["resources"]
            assert resources["requests"].keys() == {"cpu", "memory"}
            # With a limit on the processor it would wait while the processor is idle.
            assert resources["limits"].keys() == {"memory"}


def test_disks_outlive_what_uses_them(overlay: Overlay) -> None:
    for workload in overlay.of_kind("StatefulSet"):
        policy = workload["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_one_of_a_kind_at_a_time_goes_away_by_plan(overlay: Overlay) -> None:
    budgets = overlay.of_kind("PodDisruptionBudget")
    for workload, _ in overlay.services():
        labels = pod_of(workload)["metadata"]["labels"]
        (budget,) = [each for each in budgets if selects(each["spec"]["selector"], labels)]
        # minAvailable: 1 would keep the node of a service's only pod from ever being emptied.
        assert budget["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in budget["spec"]


def test_those_of_a_kind_are_spread(overlay: Overlay) -> None:
    for workload, _ in overlay.services():
        pod = pod_of(workload)
        if workload["spec"].get("replicas", 2) > 1:
            (spread,) = pod["spec"]["topologySpreadConstraints"]
            terms = pod["spec"]["affinity"]["podAntiAffinity"]
            required = terms.get("requiredDuringSchedulingIgnoredDuringExecution", [])
            preferred = terms.get("preferredDuringSchedulingIgnoredDuringExecution", [])
            found = [*required, *(each["podAffinityTerm"] for each in preferred)]
            assert spread["topologyKey"] == "topology.kubernetes.io/zone"
            assert {each["topologyKey"] for each in found} == {"kubernetes.io/hostname"}
            for selector in (spread["labelSelector"], *(each["labelSelector"] for each in found)):
                assert selects(selector, pod["metadata"]["labels"])


def test_production_pins_its_images_and_goes_before_others() -> None:
    production = build(ROOT / "overlays/production")
    (priority,) = production.of_kind("PriorityClass")
    for workload in [*production.workloads, *production.jobs]:
        for container in containers(workload):
            assert ":" in container["image"], "an image without a tag is whatever was built last"
    for workload, _ in production.services():
        assert pod_of(workload)["spec"]["priorityClassName"] == name_of(priority)


def test_selectors_find_what_they_are_for(overlay: Overlay) -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in overlay.workloads]

    def found(selector: Mapping[str, str]) -> int:
        return sum(selector.items() <= each.items() for each in labels)

    for workload in overlay.workloads:
        assert found(workload["spec"]["selector"]["matchLabels"]) == 1
    for service in overlay.of_kind("Service"):
        assert found(service["spec"]["selector"]) == 1
    for budget in overlay.of_kind("PodDisruptionBudget"):
        assert found(budget["spec"]["selector"]["matchLabels"]) == 1
    for policy in overlay.of_kind("NetworkPolicy"):
        assert any(selects(policy["spec"]["podSelector"], each) for each in labels)
    for scaler in overlay.of_kind("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        (scaled,) = [each for each in overlay.workloads if name_of(each) == target["name"]]
        assert scaled["kind"] == target["kind"]
        assert "replicas" not in scaled["spec"], "two would say how many there are"
        assert scaler["spec"]["minReplicas"] >= 2, "one that is replaced would leave none"


def test_jobs_run_commands_that_there_are_and_may_call_the_cluster() -> None:
    production = build(ROOT / "overlays/production")
    services = {
        f"{name_of(each)}:{port['port']}"
        for each in production.of_kind("Service")
        for port in each["spec"]["ports"]
    }
    assert {name_of(each) for each in production.jobs} == {"rockoon-compact", "rockoon-export"}
    for job in production.jobs:
        (container,) = containers(job)
        assert service_of(container) == "spark"
        options = parser("rockoon spark").parse_args(container["args"])
        assert options.endpoint in services
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        pod = pod_of(job)
        assert pod["metadata"]["labels"]["rockoon-client"] == "true"
        places = {mount["mountPath"] for mount in container["volumeMounts"]}
        written = [container["workingDir"], container["env"][0]["value"]]
        written += [options.target] if hasattr(options, "target") else []
        for path in written:
            assert any(path == place or path.startswith(f"{place}/") for place in places), path
        claims = {name_of(each) for each in production.of_kind("PersistentVolumeClaim")}
        for volume in pod["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
