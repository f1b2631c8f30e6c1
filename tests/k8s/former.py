"""Images of a former commit, for an upgrade and the way back."""

import shutil
import subprocess
import tarfile

from k8s import images
from k8s.shell import CACHE, ROOT, Clock, run

SERVICES = ("nameserver", "broker", "offset", "gateway")


def build(revision: str, clock: Clock) -> str:
    """Build the images of the services from a commit of this clone, and return their tag.

    Args:
        revision: as for git, such as `HEAD~1`.
        clock: prints the durations.

    Raises:
        Failed: the clone does not have the commit, or a build failed.
    """
    commit = run("git", "rev-parse", "--short=12", f"{revision}^{{commit}}", folder=ROOT).strip()
    tag = f"former-{commit}"
    missing = [name for name in SERVICES if not images.Images.exists(images.reference(name, tag))]
    if missing:
        source = CACHE / "former"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
        with archive, tarfile.open(fileobj=archive.stdout, mode="r|") as tar:
            tar.extractall(source, filter="data")
        images.build(missing, clock, source, tag)
        shutil.rmtree(source)
    return tag
