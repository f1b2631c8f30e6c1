"""Images of the services, built by buildah in a storage of their own.

No registry of images is asked. The images of the Dockerfile's FROM lines are made of Debian's
packages and of this machine's Python, Rust and Go, so their sizes are not those of the official
images.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from k8s.shell import CACHE, ROOT, STATE, Clock, Failed, logged, run

SERVICES = ("nameserver", "broker", "offset", "gateway", "client", "etcd")
TAG = "0.1.0"
DOCKERFILE = "deploy/docker/Dockerfile"
STORAGE = CACHE / "buildah"
SLIM_PACKAGES = (
    "ca-certificates,netbase,tzdata,libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,liblzma5,"
    "libreadline8,libncursesw6,libuuid1,libexpat1"
)
SUITE = "bookworm"
UNUSED = ("man", "doc", "locale", "info")
# `pyenv` and its like put programs of their own before Debian's.
DEBIAN_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
IMAGE_PATH = "/usr/local/go/bin:/usr/local/cargo/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def buildah_words(*words: object) -> list[str]:
    own = ("--root", STORAGE, "--runroot", STATE / "run" / "buildah", "--storage-driver", "overlay")
    return ["setsid", "-w", "buildah", *map(str, (*own, *words))]


def buildah(*words: object) -> str:
    return run(*buildah_words(*words), XDG_RUNTIME_DIR=str(STATE / "run"))


class Images:
    """The images in the storage."""

    @staticmethod
    def exists(reference: str) -> bool:
        command = buildah_words("inspect", "--type", "image", reference)
        return subprocess.run(command, capture_output=True).returncode == 0


def reference(name: str, tag: str = TAG) -> str:
    return f"docker.io/rockoon/{name}:{tag}"


def build(names: Iterable[str], clock: Clock, source: Path = ROOT, tag: str = TAG) -> None:
    """Build images of a checkout as the documentation describes; unchanged layers are reused."""
    build_bases(source, clock)
    volumes = ["-v", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    if Path("/etc/pip.conf").exists():
        volumes += ["-v", "/etc/pip.conf:/etc/pip.conf:ro"]
    for name in names:
        words = buildah_words(
            *("bud", "--layers", "--isolation", "chroot", "--network", "host", "--pull-never"),
            *(*volumes, "--target", name, "-t", reference(name, tag), "-f", DOCKERFILE, "."),
        )
        logged(f"image-{name}", "nice", "-n", "10", *words, folder=source)
        clock.step(f"image {name}:{tag}")


def versions(source: Path) -> dict[str, str]:
    """Return the versions of the Dockerfile's base images: PYTHON, GO, RUST."""
    text = (source / DOCKERFILE).read_text()
    return dict(re.findall(r"^ARG (PYTHON|GO|RUST)=(\S+)$", text, flags=re.M))


def build_bases(source: Path, clock: Clock) -> None:
    """Make the Dockerfile's base images that the storage does not have."""
    (STATE / "run").mkdir(parents=True, exist_ok=True)
    found = versions(source)
    python, rust, go = found["PYTHON"], found["RUST"], found["GO"]
    slim = f"docker.io/library/python:{python}-slim"
    full = f"docker.io/library/python:{python}"
    makers: dict[str, Callable[[], None]] = {
        slim: lambda: make_slim(slim, python),
        full: lambda: make_full(full, slim),
        f"docker.io/library/rust:{rust}-slim": lambda: make_rust(rust),
        f"docker.io/library/golang:{go}": lambda: make_go(go, slim),
    }
    for name, make in makers.items():
        if not Images.exists(name):
            make()
            clock.step(f"base image {name}")


def make_slim(name: str, python: str) -> None:
    """Debian with this machine's Python."""
    program = shutil.which(f"python{python}") or sys.executable
    prefix = Path(
        run(program, "-c", "import sys; print(sys.base_prefix)", folder=Path("/")).strip()
    )
    # In memory: a root file system has many small files.
    root = Path("/dev/shm/rockoon-k8s-slim")
    clear_root(root)
    options = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in UNUSED]
    hook = 'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/*'
    debian(
        *("--variant=minbase", f"--include={SLIM_PACKAGES}", "--dpkgopt=force-unsafe-io"),
        *('--aptopt=APT::Install-Recommends "false"', *options, f"--customize-hook={hook}"),
        *(SUITE, root),
    )
    local = root / "usr" / "local"
    for folder in ("bin", "lib"):
        (local / folder).mkdir(parents=True, exist_ok=True)
    left_out = (
        "__pycache__",
        "site-packages",
        "config-*",
        "test",
        "tests",
        "idlelib",
        "libpython*.a",
    )
    libraries = [f"lib/{each.name}" for each in (prefix / "lib").glob("libpython*so*")]
    copy_tree(prefix, local, [f"lib/python{python}", *libraries], left_out)
    shutil.copy(prefix / "bin" / f"python{python}", local / "bin")
    for link in ("python3", "python"):
        (local / "bin" / link).symlink_to(f"python{python}")
    (local / "lib" / f"python{python}" / "site-packages").mkdir(exist_ok=True)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc" / "ssl" / "certs")
    run("chroot", root, "ldconfig")
    run("chroot", root, "/usr/local/bin/python", "-m", "ensurepip", "--default-pip")
    for cache in list(local.rglob("__pycache__")):
        shutil.rmtree(cache)
    import_root(root, name)
    clear_root(root)


def make_full(name: str, slim: str) -> None:
    """Make the slim image with a linker and the headers of C."""
    root = Path("/dev/shm/rockoon-k8s-full")
    clear_root(root)
    debian("--variant=extract", "--include=gcc,libc6-dev", SUITE, root)
    (root / "usr" / "bin" / "cc").unlink(missing_ok=True)
    (root / "usr" / "bin" / "cc").symlink_to("gcc")
    for folder in ("proc", "sys", "etc", "var"):
        run("rm", "-rf", "--one-file-system", root / folder)
    import_root(root, name, slim)
    clear_root(root)


def make_rust(version: str) -> None:
    root = CACHE / "root-rust"
    clear_root(root)
    (root / "usr" / "local" / "rustup").mkdir(parents=True)
    target = root / "usr" / "local" / "cargo"
    target.mkdir()
    chain = Path(run("rustc", "--print", "sysroot").strip())
    copy_tree(chain, target, ["bin", "lib"], ("share", "*-musl", "rust-analyzer*", "clippy*"))
    import_root(root, f"docker.io/library/rust:{version}-slim")
    clear_root(root)


def make_go(version: str, slim: str) -> None:
    root = CACHE / "root-go"
    clear_root(root)
    target = root / "usr" / "local" / "go"
    target.mkdir(parents=True)
    chain = Path(run("go", "env", "GOROOT").strip())
    copy_tree(chain, target, ["bin", "pkg", "src", "go.env", "VERSION"], ("test", "doc"))
    import_root(root, f"docker.io/library/golang:{version}", slim)
    clear_root(root)


def debian(*words: object) -> None:
    retries = '--aptopt=Acquire::Retries "5"'
    logged("mmdebstrap", "mmdebstrap", "--quiet", retries, *words, PATH=DEBIAN_PATH)


def copy_tree(source: Path, target: Path, names: Iterable[str], left_out: Iterable[str]) -> None:
    """Copy entries of a folder, except files with these names at any depth."""
    options = [f"--exclude={each}" for each in left_out]
    packed = subprocess.Popen(
        ["tar", "-C", source, *options, "-cf", "-", *names], stdout=subprocess.PIPE
    )
    unpacked = subprocess.run(["tar", "-C", target, "-xf", "-"], stdin=packed.stdout)
    if packed.wait() or unpacked.returncode:
        raise Failed(f"{source} could not be copied to {target}")


def import_root(root: Path, name: str, base: str = "scratch") -> None:
    """Commit a root file system as an image.

    Its devices are removed first: the import of a /dev/null changed the mode of the machine's.
    """
    run("rm", "-rf", "--one-file-system", root / "dev")
    (root / "dev").mkdir()
    container = buildah("from", base).strip()
    buildah("add", "-q", container, root, "/")
    buildah("config", "--env", f"PATH={IMAGE_PATH}", container)
    buildah("commit", "-q", container, name)
    buildah("rm", container)


def clear_root(root: Path) -> None:
    """Remove a root file system.

    An interrupted mmdebstrap leaves /proc and /sys mounted in it. They are unmounted first, because
    the removal would delete files of the machine.
    """
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines]
    for point in sorted((each for each in points if each.startswith(f"{root}/")), reverse=True):
        run("umount", point)
    if root.exists():
        run("rm", "-rf", "--one-file-system", root)
