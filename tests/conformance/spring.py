"""`make spring`: the application of docs/use/gateway-spring.md on a local cluster with a gateway.

The application is built from the page's code, and runs twice. The first run sends each kind of
message, and its consumers receive them. The second run consumes a backlog that was sent while the
application was down. Exit status 1 if a message is missing, comes twice or comes out of order.
"""

import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import rockoon.sync
from bench.compare.programs import ROOT, NotHere, Program, maven, run
from conformance.languages import CACHE
from conformance.rockoon_gateway_cluster import BROKER
from conformance.scene import LOOK_SECONDS, Differs, expect
from rockoon.local import LocalCluster
from rockoon_proto.v1.nameserver_pb2 import CONSUME_FROM_FIRST, GroupConfig, StartPolicy

PAGE = ROOT / "docs" / "use" / "gateway-spring.md"
# The page's address, which each run replaces.
ENDPOINT = "127.0.0.1:8081"
TOPICS = ("orders", "steps")
GROUPS = {"billing": False, "shipping": False, "packing": True}
STARTED = "Started OrdersApplication"
SENT = ("sync", "async", "delayed", "committed", "checked")
STEPS = [f"step {number}" for number in range(1, 6)]
BACKLOG = [f"backlog {number}" for number in range(200)]
SECONDS_MAX = 120.0


def blocks(kind: str) -> list[str]:
    """The page's code blocks of one language."""
    fence = re.compile(rf"^```{kind}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return fence.findall(PAGE.read_text())


def built(endpoint: str) -> Sequence[object]:
    """Build the application for a gateway, and return the command that runs it.

    Raises:
        NotHere: this machine has no Maven or Java, or a library cannot be had.
    """
    folder = CACHE / "spring"
    folder.mkdir(parents=True, exist_ok=True)
    (pom,), (settings,) = blocks("xml"), blocks("yaml")
    written = folder / "page.xml"
    if not written.exists() or written.read_text() != pom:
        written.write_text(pom)
    libraries = maven(written, folder)
    sources, classes = folder / "sources", folder / "classes"
    for made in (sources, classes):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    assert settings.count(ENDPOINT) == 1
    (classes / "application.yml").write_text(settings.replace(ENDPOINT, endpoint))
    for text in blocks("java"):
        (name,) = re.findall(r"^public class (\w+)", text, re.MULTILINE)
        (sources / f"{name}.java").write_text(text)
    # Spring finds constructor parameters by their names.
    options = ["-parameters", "-nowarn", "-d", classes, "-cp", f"{libraries}/*"]
    run(["javac", *options, *sorted(sources.glob("*.java"))])
    path = f"{classes}:{libraries}/*"
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, "orders.OrdersApplication"]


class Application:
    """One run of the application.

    Args:
        command: see `built`.
        log: file for its output.
        arguments: of the application.
    """

    def __init__(self, command: Sequence[object], log: Path, *arguments: str) -> None:
        self._log = log
        # The client's library logs below the home directory.
        java, *rest = command
        words = (java, f"-Duser.home={log.parent}", *rest, *arguments)
        self._program = Program("the Spring application", words, log)

    def lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def had(self, group: str) -> list[str]:
        """Bodies of the messages that a group's consumer has printed, in their order."""
        begin = f"{group} has "
        return [line.removeprefix(begin) for line in self.lines() if line.startswith(begin)]

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait until a condition holds. Raises Differs if it does not in time."""
        deadline = time.monotonic() + SECONDS_MAX
        while not holds():
            if time.monotonic() > deadline:
                raise Differs(f"{what}: not within {SECONDS_MAX:.0f} s; see {self._log}")
            # Another process's output has no event to wait for.
            time.sleep(LOOK_SECONDS)

    def wait_started(self) -> None:
        self.wait(lambda: any(STARTED in line for line in self.lines()), "the start")

    def wait_had(self, group: str, wanted: Iterable[str]) -> None:
        """Wait until a group has had these messages."""
        expected = Counter(wanted)
        self.wait(lambda: expected <= Counter(self.had(group)), f"messages of {group}")

    def stop(self) -> None:
        """End it in order (SIGTERM)."""
        self._program.stop()


def first_run(command: Sequence[object], folder: Path) -> None:
    """Send each kind of message, and receive it."""
    application = Application(command, folder / "first.log")
    try:
        application.wait_started()
        for group in ("billing", "shipping"):
            application.wait_had(group, SENT)
        application.wait_had("packing", STEPS)
    finally:
        application.stop()
    for group in ("billing", "shipping"):
        expect(sorted(application.had(group)), sorted(SENT), f"{group} had")
    expect(application.had("packing"), STEPS, "packing had")
    asked = [line for line in application.lines() if line.startswith("asked about ")]
    expect(set(asked), {"asked about checked"}, "the transaction listener was")
    wrong = [line for line in application.lines() if " ERROR " in line]
    expect(wrong, [], "errors in the log")


def second_run(command: Sequence[object], folder: Path, connection: rockoon.sync.Cluster) -> None:
    """Consume a backlog that was sent while the application was down."""
    connection.send_many("orders", [body.encode() for body in BACKLOG])
    connection.send_many("steps", [body.encode() for body in BACKLOG], ordering_key="order-2")
    application = Application(command, folder / "second.log", "--send=false")
    try:
        application.wait_started()
        for group in GROUPS:
            application.wait_had(group, BACKLOG)
    finally:
        application.stop()
    for group in ("billing", "shipping"):
        expect(sorted(application.had(group)), sorted(BACKLOG), f"{group} had of the backlog")
    expect(application.had("packing"), BACKLOG, "packing had of the backlog")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="rockoon-spring-") as temporary:
        folder = Path(temporary)
        with LocalCluster(single=True, gateway=0, settings={"broker": BROKER}) as cluster:
            assert cluster.gateway is not None
            try:
                print("building the application", flush=True)
                command = built(cluster.gateway)
            except NotHere as reason:
                print(f"skipped: Spring: {reason}")
                return 0
            with rockoon.sync.connect(cluster.nameservers) as connection:
                for topic in TOPICS:
                    connection.call(connection.admin.create_topic(topic))
                for group, fifo in GROUPS.items():
                    config = GroupConfig(name=group, fifo=fifo)
                    config.start_policy.CopyFrom(StartPolicy(consume_from=CONSUME_FROM_FIRST))
                    connection.call(connection.admin.create_group(config))
                try:
                    print("first run: template, listeners, simple consumer", flush=True)
                    first_run(command, folder)
                    print("second run: a backlog", flush=True)
                    second_run(command, folder, connection)
                except Differs as what:
                    print(f"not as it should be: {what}")
                    return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
