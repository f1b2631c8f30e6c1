#!/usr/bin/env python3
"""Creates the Secrets of the production overlay, for clusters without cert-manager.

It needs Python, openssl and kubectl, and no package. A second run keeps existing Secrets: it issues
a certificate again only if a name is missing in it, or if it expires within 30 days.

    make_secrets.py                              certificates, authorities, cluster secret
    make_secrets.py --key jobs --allow cluster=admin --secret rockoon-client-access
    make_secrets.py --rotate certificates | cluster | key NAME

The environment may name two commands: KUBECTL (default: kubectl), and ROCKOON, which calls the
running cluster with the permissions of an administrator (default: kubectl exec rockoon-admin --
rockoon, in the pod of examples/admin.yaml).
"""

import argparse
import base64
import hashlib
import ipaddress
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

Data = dict[str, bytes]

AUTHORITY, ETCD_AUTHORITY = "rockoon-authority", "rockoon-etcd-authority"
CLUSTER, CLUSTER_FILE = "rockoon-cluster", "cluster-secret"
GATEWAY_CLIENTS, GATEWAY_CLIENTS_FILE = "rockoon-gateway-clients", "client-secrets"
# Records in the Secret which round of a replacement of the cluster secret is done.
ROUND = "round"
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
AUTHORITY_DAYS = 3650
RENEW_SECONDS = 30 * 86400
SERVER, CLIENT = "serverAuth", "clientAuth"
ROUNDS = ("a second secret is appended", "the new secret signs calls", "the former one is removed")
# Services read a changed file within a second.
READ_SECONDS = 1.5
HASH = "import hashlib,sys;print(hashlib.sha256(open(sys.argv[1],'rb').read()).hexdigest())"


class Refused(Exception):
    """The script cannot continue; the text names the reason and the next step."""


@dataclass(frozen=True)
class Certificate:
    """A certificate to issue.

    Attributes:
        secret: name of the Secret.
        common_name: common name in the certificate.
        names: DNS names and IP addresses in it.
        usages: its extended key usages.
        authority: Secret of the authority that signs it.
    """

    secret: str
    common_name: str
    names: tuple[str, ...] = ()
    usages: tuple[str, ...] = (SERVER, CLIENT)
    authority: str = AUTHORITY


def certificates(options: argparse.Namespace) -> list[Certificate]:
    """All certificates of the production overlay and of examples/etcd3."""
    namespace, domain = options.namespace, options.domain

    def service(name: str) -> list[str]:
        forms = [name, f"{name}.{namespace}", f"{name}.{namespace}.svc"]
        return [*forms, f"{forms[-1]}.cluster.local"]

    def log(name: str, pods: int) -> list[str]:
        """Names of the pods of a StatefulSet, and of the log if the pods are its copies."""
        names = [*(f"{name}-{index}" for index in range(pods)), name]
        return [f"{each}.{name}.{namespace}.svc" for each in names]

    def external(*names: str) -> list[str]:
        return [f"{name}.{domain}" for name in names] if domain else []

    pods = {"rockoon-broker": options.brokers} | {
        f"rockoon-broker-{each}": 3 for each in options.log
    }
    brokers = [name for each, count in pods.items() for name in log(each, count)]
    for each, count in pods.items():
        brokers += external(*(f"{each}-{index}" for index in range(count)))
    members = [f"etcd-{index}.etcd" for index in range(3)]
    made = [
        Certificate(
            "rockoon-nameserver-tls",
            "rockoon-nameserver",
            (*service("rockoon-nameserver"), *external("nameserver")),
        ),
        Certificate("rockoon-broker-tls", "rockoon-broker", tuple(brokers)),
        Certificate(
            "rockoon-offset-tls",
            "rockoon-offset",
            (
                *log("rockoon-offset", 3),
                *external(*(f"rockoon-offset-{index}" for index in range(3))),
            ),
        ),
        Certificate(
            "rockoon-gateway-tls",
            "rockoon-gateway",
            (*service("rockoon-gateway"), *external("gateway")),
            (SERVER,),
        ),
        Certificate("rockoon-client-tls", "rockoon-client", usages=(CLIENT,)),
        Certificate(
            "etcd-tls",
            "etcd",
            # The last two are for etcdctl through `kubectl port-forward`.
            (*members, *(f"{each}.{namespace}.svc" for each in members), "localhost", "127.0.0.1"),
            authority=ETCD_AUTHORITY,
        ),
        # Without names: etcd compares the names of a client's certificate with its address.
        Certificate(
            "rockoon-etcd-client-tls",
            "rockoon-nameserver",
            usages=(CLIENT,),
            authority=ETCD_AUTHORITY,
        ),
    ]
    more: dict[str, list[str]] = {each.secret: [] for each in made}
    for secret, name in options.name:
        if secret not in more:
            raise Refused(f"--name {secret}=...: no such certificate; there are {', '.join(more)}")
        more[secret].append(name)
    return [replace(each, names=(*each.names, *more[each.secret])) for each in made]


# Programs


def ran(command: Sequence[str], given: bytes = b"") -> bytes:
    """Run a program and return its output.

    Raises:
        Refused: it failed; the text has its error output.
    """
    done = subprocess.run(command, input=given, capture_output=True)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise Refused(f"`{shlex.join(command)}` failed: {reason}")
    return done.stdout


def require(program: str, hint: str) -> None:
    if shutil.which(program) is None:
        raise Refused(f"there is no program {program!r}: {hint}")


class Signer:
    """Issues keys and certificates with openssl, in a temporary directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _key(self, name: str) -> Path:
        path = self._folder / name
        path.touch(mode=0o600)
        curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
        ran(["openssl", "genpkey", *curve, "-out", str(path)])
        return path

    def _config(self, common_name: str, extensions: Mapping[str, str]) -> str:
        path = self._folder / "config"
        lines = [f"{name} = {value}" for name, value in extensions.items()]
        path.write_text(
            "[req]\nprompt = no\ndistinguished_name = subject\n"
            f"[subject]\nCN = {common_name}\n[extensions]\n" + "\n".join(lines) + "\n"
        )
        return str(path)

    def authority(self, common_name: str) -> Data:
        """Create an authority that signs itself."""
        key, made = self._key("authority.key"), self._folder / "authority.crt"
        extensions = {
            "basicConstraints": "critical,CA:TRUE,pathlen:0",
            "keyUsage": "critical,keyCertSign,cRLSign",
            "subjectKeyIdentifier": "hash",
        }
        config = self._config(common_name, extensions)
        command = ["openssl", "req", "-new", "-x509", "-sha256", "-days", str(AUTHORITY_DAYS)]
        command += ["-key", str(key), "-config", config, "-extensions", "extensions"]
        ran([*command, "-set_serial", serial(), "-out", str(made)])
        return {CERTIFICATE: made.read_bytes(), KEY: key.read_bytes(), CA: made.read_bytes()}

    def certificate(self, wanted: Certificate, authority: Data, days: int) -> Data:
        """Issue a certificate with a new key."""
        key, made = self._key("tls.key"), self._folder / "tls.crt"
        extensions = {
            "basicConstraints": "critical,CA:FALSE",
            "keyUsage": "critical,digitalSignature",
            "extendedKeyUsage": ",".join(wanted.usages),
        }
        if wanted.names:
            extensions["subjectAltName"] = ",".join(map(alternative, wanted.names))
        config = self._config(wanted.common_name, extensions)
        signing = {"signing.crt": authority[CERTIFICATE], "signing.key": authority[KEY]}
        for name, content in signing.items():
            (self._folder / name).touch(mode=0o600)
            (self._folder / name).write_bytes(content)
        request = ran(["openssl", "req", "-new", "-key", str(key), "-config", config])
        command = ["openssl", "x509", "-req", "-sha256", "-days", str(days)]
        for option, name in (("-CA", "signing.crt"), ("-CAkey", "signing.key")):
            command += [option, str(self._folder / name)]
        command += ["-set_serial", serial(), "-extfile", config, "-extensions", "extensions"]
        ran([*command, "-out", str(made)], request)
        return {CERTIFICATE: made.read_bytes(), KEY: key.read_bytes(), CA: authority[CA]}


def serial() -> str:
    return f"0x{os.urandom(16).hex()}"


def alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def names_in(data: Data) -> list[str]:
    """DNS names and IP addresses in a certificate."""
    shown = ran(["openssl", "x509", "-noout", "-text"], data[CERTIFICATE])
    found = [each.strip() for line in shown.decode().splitlines() for each in line.split(",")]
    return [each.partition(":")[2] for each in found if each.startswith(("DNS:", "IP Address:"))]


def expires_soon(data: Data) -> bool:
    command = ["openssl", "x509", "-noout", "-checkend", str(RENEW_SECONDS)]
    return subprocess.run(command, input=data[CERTIFICATE], capture_output=True).returncode != 0


def end_of(data: Data) -> str:
    shown = ran(["openssl", "x509", "-noout", "-enddate"], data[CERTIFICATE])
    return shown.decode().strip().partition("=")[2]


# Where Secrets are


class Secrets(Protocol):
    """Secrets, read and written by name."""

    def read(self, names: Iterable[str]) -> dict[str, Data]:
        """Return those that exist."""

    def create(self, secrets: Mapping[str, Data]) -> None:
        """Create Secrets that do not exist."""

    def replace(self, secrets: Mapping[str, Data]) -> None:
        """Replace Secrets that were read."""


class Directory:
    """A directory for each Secret, a file for each of its keys, readable by their owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, names: Iterable[str]) -> dict[str, Data]:
        return {
            name: {file.name: file.read_bytes() for file in (self._path / name).iterdir()}
            for name in names
            if (self._path / name).is_dir()
        }

    def create(self, secrets: Mapping[str, Data]) -> None:
        self.replace(secrets)

    def replace(self, secrets: Mapping[str, Data]) -> None:
        for name, data in secrets.items():
            folder = self._path / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for former in {each.name for each in folder.iterdir()} - data.keys():
                (folder / former).unlink()
            for key, content in data.items():
                part = folder / f".{key}"
                part.touch(mode=0o600)
                part.write_bytes(content)
                part.rename(folder / key)


class Cluster:
    """The Secrets of a namespace, by kubectl."""

    def __init__(self, kubectl: Sequence[str], namespace: str) -> None:
        self._kubectl = [*kubectl, "-n", namespace]
        self._found: dict[str, Any] = {}
        names = self._call("get", "namespace", namespace, "--ignore-not-found", "-o", "name")
        if not names.strip():
            raise Refused(
                f"there is no namespace {namespace}: "
                "`kubectl apply -f deploy/kubernetes/overlays/production/namespace.yaml` creates it"
            )

    def _call(self, *arguments: str, given: bytes = b"") -> bytes:
        return ran([*self._kubectl, *arguments], given)

    def read(self, names: Iterable[str]) -> dict[str, Data]:
        shown = self._call("get", "secret", *names, "--ignore-not-found", "-o", "json")
        found = json.loads(shown) if shown.strip() else {"items": []}
        items = found.get("items", [found])
        self._found |= {each["metadata"]["name"]: each for each in items}
        return {
            each["metadata"]["name"]: {
                key: base64.b64decode(content) for key, content in each.get("data", {}).items()
            }
            for each in items
        }

    def create(self, secrets: Mapping[str, Data]) -> None:
        labels = {"app.kubernetes.io/part-of": "rockoon"}
        objects = [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "labels": labels},
                # As cert-manager creates certificates. A type is immutable.
                "type": "kubernetes.io/tls" if CERTIFICATE in data else "Opaque",
            }
            for name, data in secrets.items()
        ]
        self._write("create", objects, secrets)

    def replace(self, secrets: Mapping[str, Data]) -> None:
        # With the version that was read: a change by another program since then is an error.
        self._write("replace", [self._found[name] for name in secrets], secrets)

    def _write(self, verb: str, objects: list[Any], secrets: Mapping[str, Data]) -> None:
        for each in objects:
            data = secrets[each["metadata"]["name"]]
            each["data"] = {key: base64.b64encode(data[key]).decode() for key in data}
        if objects:
            listed = {"apiVersion": "v1", "kind": "List", "items": objects}
            self._call(verb, "-f", "-", given=json.dumps(listed).encode())

    def wait_mounted(self, secret: str, file: str, content: bytes, seconds_max: float) -> None:
        """Wait until every pod that mounts a Secret has the content in its file."""
        digest, deadline = hashlib.sha256(content).hexdigest(), time.monotonic() + seconds_max
        while left := [
            f"{pod}/{container}"
            for pod, container, path in self._mounts(secret, file)
            if not self._has(pod, container, path, digest)
        ]:
            if time.monotonic() > deadline:
                raise Refused(
                    f"after {seconds_max:.0f} s {', '.join(left)} had not read Secret {secret}: "
                    "repair or delete these pods, then run this command again"
                )
            time.sleep(1)
        time.sleep(READ_SECONDS)

    def _has(self, pod: str, container: str, path: str, digest: str) -> bool:
        command = [*self._kubectl, "exec", pod, "-c", container, "--", "python", "-c", HASH, path]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() == digest

    def _mounts(self, secret: str, file: str) -> list[tuple[str, str, str]]:
        """Return pod, container and path of each mounted file of a Secret in a running pod."""
        found = []
        for pod in json.loads(self._call("get", "pods", "-o", "json"))["items"]:
            if pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
                continue
            volumes = {
                each["name"]
                for each in pod["spec"].get("volumes", [])
                if each.get("secret", {}).get("secretName") == secret
            }
            for container in pod["spec"]["containers"]:
                for mount in container.get("volumeMounts", []):
                    if mount["name"] in volumes:
                        place = f"{mount['mountPath']}/{file}"
                        found.append((pod["metadata"]["name"], container["name"], place))
        return found


# Commands


def make_all(options: argparse.Namespace, secrets: Secrets, signer: Signer) -> None:
    """Create missing Secrets; with `--rotate certificates` issue all certificates again."""
    wanted = certificates(options)
    names = [AUTHORITY, ETCD_AUTHORITY, *(each.secret for each in wanted), CLUSTER, GATEWAY_CLIENTS]
    found = secrets.read(names)
    authorities: dict[str, Data] = {}
    for name, common_name in ((AUTHORITY, "Rockoon"), (ETCD_AUTHORITY, "etcd of Rockoon")):
        signed = [each.secret for each in wanted if each.authority == name and each.secret in found]
        if name not in found and signed:
            raise Refused(
                f"Secret {signed[0]} exists, and {name}, the authority that signed it, does not: "
                f"restore {name}, or delete {', '.join(signed)} to create all of them again"
            )
        if name not in found:
            authorities[name] = signer.authority(common_name)
    if options.rotate and authorities:
        raise Refused("there are no certificates yet: run this script without --rotate first")
    secrets.create(authorities)
    for name in authorities:
        print(f"created   {name}: an authority")
    found |= authorities
    created: dict[str, Data] = {}
    replaced: dict[str, Data] = {}
    for each in wanted:
        former = found.get(each.secret)
        former_names = names_in(former) if former else []
        missing = [name for name in each.names if name not in former_names]
        if former and not (missing or options.rotate or expires_soon(former)):
            print(f"kept      {each.secret}")
            continue
        issued = replace(each, names=tuple(dict.fromkeys((*each.names, *former_names))))
        made = signer.certificate(issued, found[each.authority], options.days)
        (replaced if former else created)[each.secret] = made
        added = f", with {', '.join(missing)}" if former and missing else ""
        verb = "renewed" if former else "created"
        print(f"{verb:9} {each.secret}: valid until {end_of(made)}{added}")
    if not options.rotate:
        random = {CLUSTER: {CLUSTER_FILE: os.urandom(32).hex().encode()}}
        for name, data in (random | {GATEWAY_CLIENTS: {GATEWAY_CLIENTS_FILE: b""}}).items():
            if name not in found:
                created[name] = data
            print(f"{'kept' if name in found else 'created':9} {name}")
    secrets.create(created)
    secrets.replace(replaced)


def rotate_cluster(options: argparse.Namespace, secrets: Secrets) -> None:
    """Replace the cluster secret in three rounds; each waits until all pods have its file.

    Files have no pods: a call with `--output` does one round.
    """
    while True:
        data = secrets.read([CLUSTER]).get(CLUSTER)
        if data is None:
            raise Refused(f"there is no Secret {CLUSTER}: run this script without --rotate first")
        lines = data[CLUSTER_FILE].decode().split()
        done = int(data.get(ROUND, b"0"))
        if isinstance(secrets, Cluster):
            secrets.wait_mounted(CLUSTER, CLUSTER_FILE, data[CLUSTER_FILE], options.wait)
        if len(lines) != (2 if done else 1):
            raise Refused(
                f"Secret {CLUSTER} has {len(lines)} secrets, so a replacement by hand has begun: "
                "finish it as docs/operate/security.md describes"
            )
        lines = [[lines[0], os.urandom(32).hex()], lines[::-1], lines[:1]][done]
        done = (done + 1) % 3
        changed = {CLUSTER_FILE: "\n".join(lines).encode()}
        secrets.replace({CLUSTER: changed | ({ROUND: str(done).encode()} if done else {})})
        print(f"round {done or 3} of 3: {CLUSTER}: {ROUNDS[done - 1]}", flush=True)
        if isinstance(secrets, Cluster) and done:
            continue
        if done:
            print("update the Secret, wait until each pod has it, and run this command again")
        return


def make_key(
    options: argparse.Namespace, secrets: Secrets, rockoon: Sequence[str], name: str
) -> None:
    """Create an access key in the running cluster, or rotate it; write it to its Secret."""
    target = options.secret
    former = secrets.read([target]).get(target)
    if former is not None and former.get("key", b"").decode() != name:
        raise Refused(
            f"Secret {target} has another key, {former.get('key', b'').decode()!r}: "
            "name a Secret for this one with --secret"
        )
    if former is not None and not options.rotate:
        print(f"kept      {target}: access key {name}")
        return
    if options.rotate:
        command = ["access", "rotate", name, "--former", options.former]
    else:
        permissions = [word for each in options.allow for word in ("--allow", each)]
        command = ["access", "create", name, *permissions]
    try:
        reply = json.loads(ran([*rockoon, *command, "--json"]))
    except Refused as failure:
        if "NotFound" not in str(failure):
            raise
        raise Refused(
            f"{failure}\nApply deploy/kubernetes/examples/admin.yaml, and wait for its pod"
        ) from None
    made = {"key": name.encode(), "secret": reply["secret"].encode()}
    try:
        (secrets.replace if former else secrets.create)({target: made})
    except Refused as failure:
        # The cluster shows a secret only once.
        handle, path = tempfile.mkstemp(prefix=f"rockoon-{name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(made["secret"])
        raise Refused(f"{failure}\nthe secret of access key {name} is in {path}") from None
    print(f"{'renewed' if former else 'created':9} {target}: access key {name}")


# Arguments


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--namespace", default="rockoon", help="of the cluster (default: rockoon)")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="write files DIR/SECRET/KEY instead of Secrets"
    )
    parser.add_argument("--brokers", type=int, default=3, metavar="N", help="pods (default: 3)")
    parser.add_argument(
        "--log", action="append", default=[], metavar="b", help="for logs/b; repeatable"
    )
    parser.add_argument("--domain", metavar="DOMAIN", help="for clients outside of the cluster")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        type=lambda text: text.partition("=")[::2],
        metavar="SECRET=NAME",
        help="another DNS name or IP address in a certificate; repeatable",
    )
    parser.add_argument("--days", type=int, default=365, help="of certificates (default: 365)")
    parser.add_argument(
        "--rotate", nargs="+", metavar="WHAT", help="certificates | cluster | key NAME"
    )
    parser.add_argument("--wait", type=float, default=300, metavar="SECONDS", help="for pods")
    parser.add_argument("--key", metavar="NAME", help="create an access key in the running cluster")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="PERMISSION", help="of --key; repeatable"
    )
    parser.add_argument(
        "--secret", metavar="SECRET", help="of a key (default: rockoon-access-NAME)"
    )
    parser.add_argument("--former", default="1d", help="validity of a rotated key's former secret")
    options = parser.parse_args(arguments)
    rotate = options.rotate or []
    if rotate and (rotate[0], len(rotate)) not in {("certificates", 1), ("cluster", 1), ("key", 2)}:
        parser.error(f"--rotate {' '.join(rotate)}: expected certificates, cluster or key NAME")
    if options.key and rotate:
        parser.error("--key creates an access key; to replace its secret: --rotate key NAME")
    if options.key and not options.allow:
        parser.error("--key needs at least one --allow, as `rockoon access create`")
    name = options.key or (rotate[1] if len(rotate) == 2 else "")
    for option in ("allow", "secret"):
        if getattr(options, option) and not name:
            parser.error(f"--{option} is for --key and --rotate key")
    if options.brokers < 1 or options.days < 1:
        parser.error("--brokers and --days are at least 1")
    options.secret = options.secret or f"rockoon-access-{name}"
    options.access_key = name
    return options


def run(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    kubectl = shlex.split(os.environ.get("KUBECTL", "kubectl"))
    inside = [*kubectl, "-n", options.namespace, "exec", "rockoon-admin", "--", "rockoon"]
    rockoon = shlex.split(os.environ.get("ROCKOON", "")) or inside
    if options.output is None:
        require(kubectl[0], "install it, set KUBECTL, or write files with --output DIR")
    secrets: Secrets = (
        Directory(options.output) if options.output else Cluster(kubectl, options.namespace)
    )
    if options.access_key:
        require(rockoon[0], "install it, or set KUBECTL or ROCKOON")
        make_key(options, secrets, rockoon, options.access_key)
    elif options.rotate == ["cluster"]:
        rotate_cluster(options, secrets)
    else:
        require("openssl", "install it")
        with tempfile.TemporaryDirectory(prefix="rockoon-secrets-") as folder:
            make_all(options, secrets, Signer(Path(folder)))


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except Refused as reason:
        sys.exit(f"make_secrets: {reason}")
    except KeyboardInterrupt:
        sys.exit("make_secrets: interrupted; run the same command again to continue")
