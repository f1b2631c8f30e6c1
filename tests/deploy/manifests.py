"""The manifests of an overlay as a cluster gets them, and the meaning of their parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kubernetes_validate import utils as schemas

from rockoon_broker.settings import BrokerSettings
from rockoon_gateway.settings import GatewaySettings
from rockoon_nameserver.settings import NameserverSettings
from rockoon_offset.settings import OffsetSettings
from rockoon_runtime.settings import Loaded, load
from support import kustomize

ROOT = Path(__file__).parents[2] / "deploy/kubernetes"
Document = dict[str, Any]
# IP address of the pods.
POD_IP = "10.1.2.3"

# Otherwise `kubernetes_validate` reads a megabyte of schemas for each object.
for each in ("all_versions", "schema_contents"):
    setattr(schemas, each, cache(getattr(schemas, each)))

SETTINGS: Mapping[str, type] = {
    "nameserver": NameserverSettings,
    "broker": BrokerSettings,
    "offset": OffsetSettings,
    "gateway": GatewaySettings,
}


@dataclass
class Overlay:
    """Objects of a kustomization.

    Attributes:
        documents: all objects.
    """

    documents: list[Document]

    def of_kind(self, *kinds: str) -> list[Document]:
        return [each for each in self.documents if each["kind"] in kinds]

    def named(self, kind: str, name: str) -> Document:
        (found,) = [each for each in self.of_kind(kind) if name_of(each) == name]
        return found

    @property
    def namespace(self) -> str:
        (found,) = self.of_kind("Namespace")
        return name_of(found)

    @property
    def workloads(self) -> list[Document]:
        return self.of_kind("Deployment", "StatefulSet")

    @property
    def jobs(self) -> list[Document]:
        return self.of_kind("CronJob", "Job")

    def services(self) -> list[tuple[Document, Document]]:
        """Return all workloads with a container of one of the services."""
        return [
            (workload, container)
            for workload in self.workloads
            for container in containers(workload)
            if service_of(container) in SETTINGS
        ]

    def files(self, workload: Document, container: Document) -> dict[str, str]:
        """Return the files of a container from its ConfigMaps: path to content."""
        volumes = {each["name"]: each for each in pod_of(workload)["spec"].get("volumes", [])}
        found = {}
        for mount in container.get("volumeMounts", []):
            reference = volumes.get(mount["name"], {}).get("configMap")
            if reference is not None:
                data = self.named("ConfigMap", reference["name"])["data"]
                found |= {f"{mount['mountPath']}/{name}": text for name, text in data.items()}
        return found

    def settings(self, workload: Document, container: Document, index: int = 0) -> Loaded[Any]:
        """Return the settings of a container's service.

        Args:
            workload, container: one of `services`.
            index: number of the pod.
        """
        flag, path = container["args"]
        assert flag == "--config"
        service = service_of(container)
        with TemporaryDirectory() as directory:
            file = Path(directory) / Path(path).name
            file.write_text(self.files(workload, container)[path])
            return load(
                SETTINGS[service],
                service,
                file=file,
                environment=self.environment(workload, container, index),
                arguments={},
            )

    def environment(
        self, workload: Document, container: Document, index: int = 0
    ) -> dict[str, str]:
        """Return a container's variables as its pod sees them: each may contain earlier ones."""
        fields = {
            "metadata.name": f"{name_of(workload)}-{index}",
            "metadata.namespace": self.namespace,
            "status.podIP": POD_IP,
        }
        labels = pod_of(workload)["metadata"].get("labels", {})
        fields |= {f"metadata.labels['{name}']": value for name, value in labels.items()}
        found: dict[str, str] = {}
        for variable in container.get("env", []):
            if "value" in variable:
                value = variable["value"]
                for name, known in found.items():
                    value = value.replace(f"$({name})", known)
                assert "$(" not in value, f"{variable['name']} names none that is above it"
            elif "configMapKeyRef" in variable["valueFrom"]:
                reference = variable["valueFrom"]["configMapKeyRef"]
                value = self.named("ConfigMap", reference["name"])["data"][reference["key"]]
            elif "secretKeyRef" in variable["valueFrom"]:
                reference = variable["valueFrom"]["secretKeyRef"]
                value = f"what is in {reference['name']} under {reference['key']}"
            else:
                value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            found[variable["name"]] = value
        return found


def overlays() -> list[str]:
    return sorted(path.name for path in (ROOT / "overlays").iterdir())


def build(directory: Path) -> Overlay:
    """Build a directory with a kustomization.yaml."""
    return Overlay(kustomize.build(directory))


def name_of(document: Document) -> str:
    return str(document["metadata"]["name"])


def pod_of(document: Document) -> Document:
    """Return the template of the pods of a workload or a job."""
    spec = document["spec"]
    template: Document = (
        spec["jobTemplate"]["spec"]["template"] if "jobTemplate" in spec else spec["template"]
    )
    return template


def containers(document: Document) -> list[Document]:
    pod = pod_of(document)["spec"]
    found: list[Document] = [*pod.get("initContainers", []), *pod["containers"]]
    return found


def service_of(container: Document) -> str:
    """Return the image's last part: the name of our program in a container."""
    return str(container["image"].rpartition("/")[2].partition(":")[0])
