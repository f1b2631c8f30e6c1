"""Write the Helm chart's templates, schema and documentation, or check that they are current.

kustomize's components are the chart's switches. The generator builds the base with none, with each,
with each pair and with all components, compares the objects, and writes each difference as a
condition on the switches that decide it. Values (replicas, images, disks) are put in as expressions
before a component is applied: a component that sets the field overrides the value, as it does in
kustomize. tests/deploy/test_chart.py compares the objects of helm with those of kustomize.
"""

import argparse
import functools
import itertools
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from support import kustomize
from support.kustomize import Document, Objects
from tools import chart_values

ROOT = Path(__file__).resolve().parent.parent / "deploy"
KUBERNETES = ROOT / "kubernetes"
CHART = ROOT / "helm/rockoon"
TEMPLATES = CHART / "templates"
PAGE = ROOT.parent / "docs/operate/helm.md"
TABLE_BEGIN, TABLE_END = "<!-- values -->", "<!-- end of values -->"
HEAD = "{{- /* Made from deploy/kubernetes by `make chart`. Change the files there. */ -}}"
RULES_HEAD = """\
# Made from deploy/prometheus/rockoon-alerts.yml by `make chart`. Change the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: rockoon
spec:
"""

# Switches in the order in which an overlay names them, with the condition on the chart's values.
SWITCHES = {
    "etcd": "$.Values.etcd.embedded",
    "gateway": "$.Values.gateway.enabled",
    "gateway-scaler": "and $.Values.gateway.enabled $.Values.gateway.scaler",
    "spark-jobs": "$.Values.sparkJobs.enabled",
    "external-access": "$.Values.externalAccess.enabled",
    "external-gateway": "and $.Values.gateway.enabled $.Values.gateway.external",
    "prometheus-annotations": "$.Values.monitoring.annotations",
    "prometheus-operator": "$.Values.monitoring.podMonitor",
    "tls": "$.Values.tls.enabled",
    "cert-manager": "and $.Values.tls.enabled $.Values.tls.certManager",
    "pod-certificates": "and $.Values.tls.enabled $.Values.tls.podCertificates",
    "access": "$.Values.access.enabled",
    "etcd-tls": "$.Values.etcd.tls",
    "copies": "$.Values.broker.copies",
    "offset-copies": "$.Values.offset.copies",
    "autoscaling": "$.Values.autoscaling.enabled",
    "priority": "$.Values.priorityClass.enabled",
    "one-per-node": "$.Values.onePerNode",
    # Brokers of logs/b: the template repeats its objects for each log of the values.
    "log": "$log",
}
NEEDS = {
    "gateway-scaler": "gateway",
    "external-gateway": "gateway",
    "pod-certificates": "tls",
    "cert-manager": "tls",
}
FIRST, MORE = "rockoon-broker", "rockoon-broker-b"
EACH_LOG = [
    '{{- range $log := prepend $.Values.broker.logs "" }}',
    '{{- $broker := list "rockoon-broker" $log | compact | join "-" }}',
]
# Services of the first pods: the template repeats them for each pod.
POD_SERVICES = {
    f"rockoon-{part}-0-external": (
        f'{{{{- range $pod := include "rockoon.pods" (list $ "{part}") | fromJsonArray }}}}'
    )
    for part in ("broker", "offset")
}
OTHER_PODS = re.compile("Service rockoon-(broker|offset)-[1-9]-external")
# Lists with named elements: each element may have a condition.
ELEMENT_KEYS = {
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Values replace these parts of a pod as a whole.
REPLACEABLE = ("affinity", "topologySpreadConstraints")
# The key under which a mapping has lines of the template's own.
RAW = "@raw"
ELSE, END = "{{- else }}", "{{- end }}"
# $(NAME) in a variable, which Kubernetes replaces by the value of a variable above.
REFERENCE = re.compile(r"\$\((\w+)\)")
SERVICES = ("nameserver", "broker", "offset", "gateway")
ABSENT = None

Flags = frozenset[str]
Samples = list[tuple[Flags, Any]]


def samples_of_objects() -> dict[tuple[str, str], Samples]:
    """Each object by kind and name, as it is with every tried set of switches."""
    builds = [
        (flags, {(each["kind"], each["metadata"]["name"]): each for each in built(flags)})
        for flags in tried_flags()
    ]
    found: dict[tuple[str, str], Samples] = {
        key: [(flags, documents.get(key, ABSENT)) for flags, documents in builds]
        for key in dict.fromkeys(key for _, documents in builds for key in documents)
    }
    for (kind, name), samples in list(found.items()):
        if name == MORE:
            first = found[kind, FIRST]
            found[kind, FIRST] = [
                sample
                for (flags, ours), (_, theirs) in zip(first, samples, strict=True)
                for sample in (
                    (flags, with_log(ours, theirs)),
                    (flags | {"log"}, with_log(theirs, theirs)),
                )
            ]
            del found[kind, name]
    return found


def tried_flags() -> list[Flags]:
    names = [name for name in SWITCHES if name != "log"]
    chosen: Iterable[Iterable[str]] = itertools.chain(
        *(itertools.combinations(names, count) for count in (0, 1, 2)),
        [set(names) - {name} for name in names],
        [names],
    )
    closed = [frozenset(each) for each in chosen]
    return list(dict.fromkeys(f for f in closed if all(NEEDS.get(n, n) in f for n in f)))


def with_log(place: Any, more: Any) -> Any:
    """Replace the name of a log by an expression, wherever `logs/b` names its own log."""
    if isinstance(place, dict):
        return {key: with_log(each, more.get(key, each)) for key, each in place.items()}
    if isinstance(place, list) and len(place) == len(more):
        return [with_log(*pair) for pair in zip(place, more, strict=True)]
    if more == MORE:
        return scalar("$broker")
    return place


@functools.cache
def directory_of(switch: str) -> Path:
    return (KUBERNETES / "components" / switch).resolve()


def built(flags: Flags) -> list[Document]:
    """The objects with some switches on, with expressions where the chart has values."""
    objects = Objects()
    marked: set[int] = set()
    kustomize.accumulate(KUBERNETES / "base", objects)
    kustomize.add_resources(["../../logs/b"], KUBERNETES / "overlays/dev", objects)
    for switch in [name for name in SWITCHES if name in flags] + [""]:
        for document in objects.documents:
            if id(document) not in marked:
                marked.add(id(document))
                put_values(document)
        if switch == "etcd":
            kustomize.add_resources(["etcd.yaml"], KUBERNETES / "overlays/dev", objects)
        elif switch == "prometheus-annotations":
            patches = next(kustomize.load_all(read(directory_of("monitoring"))))["patches"]
            kustomize.apply_patches(patches, KUBERNETES, objects)
        elif switch == "cert-manager":
            kustomize.add_resources(["../../cert-manager"], KUBERNETES / "overlays/dev", objects)
        elif switch == "prometheus-operator":
            kustomize.add_resources(["pod-monitor.yaml"], directory_of(switch), objects)
        elif switch:
            kustomize.accumulate(directory_of(switch), objects)
    found = [
        each for each in objects.documents if not OTHER_PODS.fullmatch(kustomize.described(each))
    ]
    for document in found:
        put_additions(document)
    return found


@functools.cache
def read(directory: Path) -> str:
    return (directory / "kustomization.yaml").read_text()


def part_of(name: str) -> str:
    """The key of the chart's values that an object belongs to."""
    name = name.removeprefix("rockoon-").partition("-")[0]
    return {"compact": "sparkJobs", "export": "sparkJobs"}.get(name, name)


def put_values(document: Document) -> None:
    """Replace the fields that the chart's values decide by expressions."""
    kind, part = document["kind"], part_of(document["metadata"]["name"])
    document["metadata"].pop("namespace", None)
    spec = document.get("spec", {})
    for template in kustomize.templates(document)[-1:]:
        for container in template["spec"]["containers"]:
            image = container["image"].partition(":")[0]
            container["image"] = scalar(f'include "rockoon.image" (list $ "{image}" $values)')
            container["resources"] = block("toYaml $values.resources")
            container[RAW] = [
                "{{- with $.Values.image.pullPolicy }}",
                "imagePullPolicy: {{ . }}",
                "{{- end }}",
            ]
    # One offset service, or the three copies of offset-copies.
    if kind in ("Deployment", "StatefulSet") and part not in ("etcd", "offset"):
        spec["replicas"] = scalar("$values.replicas")
    claims = [each["spec"] for each in spec.get("volumeClaimTemplates", [])]
    for claim in [*claims, *([spec] if kind == "PersistentVolumeClaim" else [])]:
        claim["resources"]["requests"]["storage"] = scalar("$values.storage.size")
        claim[RAW] = [
            "{{- with $values.storage.className }}",
            "storageClassName: {{ . }}",
            "{{- end }}",
        ]
    if kind == "Certificate" and "dnsNames" in spec:
        spec["dnsNames"] = block(f'include "rockoon.certificateNames" (list $ "{part}")')
    if kind == "ConfigMap" and part == "external":
        document["data"]["domain"] = scalar("$.Values.externalAccess.domain")
    elif kind == "ConfigMap" and part in SERVICES:
        ((file, text),) = document["data"].items()
        settings = f'"{part}" `{json.dumps(tomllib.loads(text))}`'
        if part == "nameserver":
            settings += f" `{json.dumps(etcd_tls())}`"
        document["data"][file] = lines(f'include "rockoon.settings" (list $ {settings})')


def etcd_tls() -> Document:
    """The nameservers' settings that name the files of components/etcd-tls."""
    file = KUBERNETES / "overlays/production/settings/nameserver.toml"
    settings = tomllib.loads(file.read_text())
    return {name: value for name, value in settings.items() if name.startswith("etcd_tls")}


def put_additions(document: Document) -> None:
    """Add lines that kustomize's files cannot have: labels of Helm, and values for pods."""
    part = part_of(document["metadata"]["name"])
    if document.get("spec", {}).get("type") == "LoadBalancer":
        document["spec"]["type"] = scalar("$.Values.externalAccess.serviceType")
        document["spec"][RAW] = included("rockoon.loadBalancer", "$")
        document["metadata"]["annotations"] = block("toJson $.Values.externalAccess.annotations")
    if document["kind"] == "PersistentVolumeClaim":
        # As the claims of StatefulSets: it stays when the release is uninstalled.
        document["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    for container in kustomize.containers_of([document]):
        for variable in container.get("env", []):
            if variable["name"].endswith("_ADVERTISE_EXTERNAL"):
                address, _, port = variable["value"].rpartition(":")
                port = scalar(f'include "rockoon.externalPort" (list $ {port})')
                variable["value"] = f"{address}:{port}"
    labels = included("rockoon.labels", "$")
    if document["kind"] == "PodMonitor":
        labels += included("rockoon.monitoringLabels", "$")
    document["metadata"].setdefault("labels", {})[RAW] = labels
    for template in kustomize.templates(document)[-1:]:
        template["spec"][RAW] = included("rockoon.pod", "(list $ $values)")
        template["metadata"]["labels"][RAW] = included("rockoon.podLabels", "$values")
        if part in SERVICES:
            annotations = template["metadata"].setdefault("annotations", {})
            annotations[RAW] = included("rockoon.podAnnotations", f'(list $ "{part}")')
            for key in REPLACEABLE:
                template["spec"].setdefault(key, ABSENT)


def included(name: str, argument: str) -> list[str]:
    return [f'{{{{- include "{name}" {argument} | nindent @indent@ }}}}']


def scalar(text: str) -> str:
    """A scalar that the template computes."""
    return f"@@{text}@@"


def block(text: str) -> str:
    """A mapping that the template computes."""
    return f"@block@{text}@@"


def lines(text: str) -> str:
    """A text of several lines that the template computes."""
    return f"@text@{text}@@"


def written(samples: Samples, indent: int, key: str = "", dash: bool = False) -> list[str]:
    """The lines of a template that gives every sample's value under its switches.

    Args:
        samples: the value with each tried set of switches, `ABSENT` where there is none.
        indent: columns before the key.
        key: the key of the value; the document itself has none.
        dash: whether the value is an element of a list.
    """
    present = [(flags, value) for flags, value in samples if value is not ABSENT]
    if len(present) < len(samples):
        shape = [(flags, value is not ABSENT) for flags, value in samples]
        return branched(samples, deciding(shape), lambda s: written(s, indent, key, dash))
    pad = " " * indent
    values = [value for _, value in present]
    if all(isinstance(value, dict) for value in values) and any(values):
        body = mapping(present, indent + 2 * bool(key or dash))
        if dash:
            return [f"{pad}- {body[0].lstrip()}", *body[1:]]
        return [f"{pad}{key}:", *body] if key else body
    if all(isinstance(each, dict) for each in elements(values)) and elements(values):
        name = ELEMENT_KEYS.get(key) or port_key(key, values)
        if name or len({len(value) for value in values}) == 1:
            return [f"{pad}{key}:", *sequence(present, name, indent + 2)]
    if len({json.dumps(value) for value in values}) > 1:
        return branched(present, deciding(present), lambda s: written(s, indent, key))
    return plain(key, values[0], indent)


def elements(values: list[Any]) -> list[Any]:
    return [each for value in values if isinstance(value, list) for each in value]


def port_key(key: str, values: list[Any]) -> str:
    """The key that identifies each port of a list, or an empty text if none does."""
    for name in ("containerPort", "port") if key == "ports" else ():
        numbers = [[each.get(name) for each in value] for value in values]
        if all(None not in each and len({*each}) == len(each) for each in numbers):
            return name
    return ""


def mapping(samples: Samples, indent: int) -> list[str]:
    lines: list[str] = []
    for key in ordered([list(value) for _, value in samples]):
        each = [(flags, value.get(key, ABSENT)) for flags, value in samples]
        if key == RAW:
            raw = next(value for _, value in each if value is not ABSENT)
            lines += [" " * indent + line.replace("@indent@", str(indent)) for line in raw]
        elif key in REPLACEABLE:
            lines += replaceable(each, indent, key)
        elif any(value is not ABSENT for _, value in each):
            append(lines, written(each, indent, key))
    return lines


def replaceable(samples: Samples, indent: int, key: str) -> list[str]:
    """A part of a pod that the values may replace as a whole."""
    pad = " " * indent
    former = written(samples, indent, key) if any(value for _, value in samples) else []
    return [
        f"{pad}{{{{- with $values.{key} }}}}",
        f"{pad}{key}: {{{{- toYaml . | nindent {indent + 2} }}}}",
        *([f"{pad}{{{{- else }}}}", *former] if former else []),
        f"{pad}{{{{- end }}}}",
    ]


def sequence(samples: Samples, name: str, indent: int) -> list[str]:
    """The elements of a list, identified by their name, or else by their index."""
    lines: list[str] = []
    by_name = [
        (flags, {each.get(name, place): each for place, each in enumerate(value)})
        for flags, value in samples
    ]
    for element in referred_first(by_name):
        each = [(flags, value.get(element, ABSENT)) for flags, value in by_name]
        named = [(flags, value and named_first(value, name)) for flags, value in each]
        append(lines, written(named, indent, dash=True))
    return lines


def referred_first(samples: Samples) -> list[Any]:
    """The names of all elements, each variable behind those that its value refers to."""
    waiting = ordered([list(value) for _, value in samples])
    referred: dict[Any, set[Any]] = {name: set() for name in waiting}
    for name, element in ((n, each) for _, value in samples for n, each in value.items()):
        referred[name] |= set(REFERENCE.findall(str(element.get("value", ""))))
    found: list[Any] = []
    while waiting:
        name = next(each for each in waiting if not referred[each] & {*waiting})
        waiting.remove(name)
        found.append(name)
    return found


def append(lines: list[str], more: list[str]) -> None:
    """Append lines; those under the condition of the last ones go into the same block."""
    if lines and lines[-1] == END and more[0] == opening(lines) and ELSE not in more:
        del lines[-1], more[0]
    lines += more


def opening(lines: list[str]) -> str:
    """The condition of the block that ends with the last line, if it has one branch."""
    depth = 0
    for line in reversed(lines):
        depth += (line == END) - line.startswith("{{- if")
        if depth == 0 or (depth == 1 and line == ELSE):
            return line
    return ""


def named_first(element: Document, name: str) -> Document:
    return {name: element[name]} | element if name else element


def ordered(lists: list[list[Any]]) -> list[Any]:
    """All elements, in the order of the longest list: with all switches on it has nearly all."""
    return list(dict.fromkeys(itertools.chain(*sorted(lists, key=len, reverse=True))))


def deciding(samples: Samples) -> list[str]:
    """The fewest switches that decide a value."""
    texts = [(flags, json.dumps(value)) for flags, value in samples]
    for count in range(1, 4):
        for names in itertools.combinations(SWITCHES, count):
            found: dict[Flags, str] = {}
            if all(found.setdefault(flags & set(names), each) == each for flags, each in texts):
                return list(names)
    raise ValueError(f"more than three switches decide {samples[0][1]!r}")


def branched(
    samples: Samples, switches: list[str], write: Callable[[Samples], list[str]]
) -> list[str]:
    """Lines with a condition for each switch."""
    (first, *others) = switches
    halves: list[list[str]] = []
    for wanted in (True, False):
        half = [sample for sample in samples if (first in sample[0]) == wanted]
        if not half or all(value is ABSENT for _, value in half):
            halves.append([])
        else:
            halves.append(branched(half, others, write) if others else write(half))
    on, off = halves
    condition = SWITCHES[first]
    if on == off:
        return on
    if not on:
        return [f"{{{{- if not ({condition}) }}}}", *off, END]
    return [f"{{{{- if {condition} }}}}", *on, *([ELSE, *off] if off else []), END]


def plain(key: str, value: Any, indent: int) -> list[str]:
    """Lines that depend on no switch."""
    content = yaml.safe_dump({key: value} if key else value, sort_keys=False, width=1000)
    if "{{" in content:
        raise ValueError(f"helm would read {content!r} as a template")
    for mark, before in (("@block@", ""), ("@text@", "|")):
        content = re.sub(
            rf"'?{mark}(.*?)@@'?$",
            rf"{before}{{{{- \1 | nindent {indent + 2} }}}}",
            content,
            flags=re.MULTILINE,
        )
    content = re.sub(r"'?([^'@ \n]*)@@(.*?)@@'?$", r"\1{{ \2 }}", content, flags=re.MULTILINE)
    return [" " * indent + line for line in content.splitlines()]


def templates() -> dict[Path, str]:
    """The text of each template."""
    made: dict[str, list[str]] = {}
    for (kind, name), samples in samples_of_objects().items():
        if kind == "HorizontalPodAutoscaler" and name == "rockoon-gateway":
            # It scales a Deployment that only `gateway` makes.
            samples = [(f, value if "gateway" in f else ABSENT) for f, value in samples]
        text = ["---", *written(samples, 0)]
        if any("$values" in line for line in text):
            text.insert(0, f"{{{{- $values := $.Values.{part_of(name)} }}}}")
        if kind == "PriorityClass":
            # It has no namespace: a second release does not create it again.
            text[1] = "{{- if and $.Values.priorityClass.enabled $.Values.priorityClass.create }}"
        if any("log" in flags for flags, _ in samples):
            text = [*EACH_LOG, *text, END]
        if name in POD_SERVICES:
            pod = name.removesuffix("-external")
            text = [POD_SERVICES[name], *(line.replace(pod, "{{ $pod }}") for line in text), END]
        part = name.removeprefix("rockoon-")
        # Pods restart when the file with their settings changes.
        files_of_kinds = {
            "Certificate": "certificates",
            "ConfigMap": f"settings-{part}",
            "Issuer": "certificates",
            "NetworkPolicy": "network",
        }
        file = "external" if part.endswith("external") else files_of_kinds.get(kind, part)
        made.setdefault(file, []).extend(text)
    return {
        TEMPLATES / f"{file}.yaml": "\n".join([HEAD, *lines, ""]) for file, lines in made.items()
    }


def rules() -> str:
    """The alert rules as an object for Prometheus' operator."""
    groups = (ROOT / "prometheus/rockoon-alerts.yml").read_text()
    return RULES_HEAD + textwrap.indent(groups, "  ", lambda line: bool(line.strip()))


def with_table(page: str) -> str:
    """The documentation's page with a current table of values."""
    before, _, rest = page.partition(TABLE_BEGIN)
    after = rest.partition(TABLE_END)[2]
    return f"{before}{TABLE_BEGIN}\n\n{chart_values.table()}\n\n{TABLE_END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    check = parser.parse_args().check
    made = templates() | {
        KUBERNETES / "components/prometheus-operator/rules.yaml": rules(),
        CHART / "values.schema.json": chart_values.schema(),
        PAGE: with_table(PAGE.read_text()),
    }
    superfluous = [
        path
        for path in TEMPLATES.glob("*.yaml")
        if path not in made and path.read_text().startswith(HEAD)
    ]
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if check:
        print(*(f"{path} is stale: run `make chart`" for path in superfluous + stale), sep="\n")
        return int(bool(superfluous or stale))
    for path in superfluous:
        path.unlink()
    for path in stale:
        path.write_text(made[path])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
