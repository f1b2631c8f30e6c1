"""Build the images of deploy/docker/Dockerfile with buildah, podman or docker: `make images`.

Prints a table of sizes, and writes the bill of materials of each image into `.images`. ENGINE may
be a command with options (`buildah --root FOLDER`), BUILD_OPTIONS are options of `build`.
"""

import argparse
import gzip
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench import tables

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
PAGE = ROOT / "docs/operate/images.md"
OUT = ROOT / ".images"
ENGINES = ("buildah", "podman", "docker")
NODE = ("nameserver", "broker", "offset", "gateway", "client", "etcd")
IMAGES = (*NODE, "spark", "load-test")
# The time of all files and images: one that never changes keeps layers the same in all releases.
EPOCH = "315532800"
MB = 1_000_000
GZIP = b"\x1f\x8b"
BILL = "sbom.cdx.json"


@dataclass(frozen=True, slots=True)
class Image:
    """An image as an engine saves it.

    Attributes:
        identity: digest of the configuration, which names all layers.
        layers: uncompressed bytes by digest, in order.
        bill: bill of materials.
    """

    identity: str
    layers: Mapping[str, int]
    bill: bytes

    @property
    def size(self) -> int:
        return sum(self.layers.values())


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that builds images.

    Attributes:
        command: the program, with what precedes it and its global options.
        name: one of ENGINES.
    """

    command: Sequence[str]
    name: str

    def build(self, target: str, reference: str, options: Sequence[str]) -> None:
        epoch = os.environ.get("SOURCE_DATE_EPOCH", EPOCH)
        once = {"buildah": ["--layers", "--force-rm", "--timestamp", epoch]}
        once |= {"podman": ["--timestamp", epoch], "docker": []}
        words = ["build", *once[self.name], "--build-arg", f"SOURCE_DATE_EPOCH={epoch}", *options]
        words += ["--target", target, "--tag", reference, "--file", str(DOCKERFILE), str(ROOT)]
        self.run(*words)

    def save(self, reference: str, file: Path) -> None:
        if self.name == "buildah":
            self.run("push", "--quiet", reference, f"docker-archive:{file}:{reference}")
        else:
            kind = ["--format", "docker-archive"] if self.name == "podman" else []
            self.run("save", *kind, "--output", str(file), reference)

    def image(self, reference: str, kept: Path | None) -> Image:
        """Read an image from an archive, which is kept under a name or deleted."""
        with tempfile.TemporaryDirectory(prefix="rockoon-images-") as folder:
            archive = Path(folder, "image.tar")
            self.save(reference, archive)
            image = read(archive)
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(archive, kept)
        return image

    def run(self, *words: str) -> None:
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stdout[-3000:] + done.stderr[-3000:])
            sys.exit(f"images: `{shlex.join([*self.command, *words[:1]])}` failed; see above")


def engine(command: str) -> Engine:
    """Return the engine that a command names, or without one the first that this machine has."""
    words = shlex.split(command)
    for word in words:
        if Path(word).name in ENGINES:
            return Engine(words, Path(word).name)
    if words:
        sys.exit(f"images: ENGINE={command!r} names none of {', '.join(ENGINES)}")
    for name in ENGINES:
        # Docker's program is often there without its daemon.
        if (
            shutil.which(name)
            and not subprocess.run([name, "info"], capture_output=True).returncode
        ):
            return Engine([name], name)
    sys.exit("images: found none of buildah, podman and a running docker; install one of them")


def read(archive: Path) -> Image:
    with tarfile.open(archive) as tar:
        (entry,) = json.load(member(tar, "manifest.json"))
        config = member(tar, entry["Config"]).read()
        digests = json.loads(config)["rootfs"]["diff_ids"]
        layers = {
            digest: uncompressed_size(member(tar, name))
            for digest, name in zip(digests, entry["Layers"], strict=True)
        }
        bill = bill_of(tar, entry["Layers"])
    return Image(hashlib.sha256(config).hexdigest(), layers, bill)


def member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    assert file is not None, name
    return file


def uncompressed_size(layer: IO[bytes]) -> int:
    """Return the bytes of a layer; newer versions of docker save layers compressed."""
    compressed = layer.read(len(GZIP)) == GZIP
    layer.seek(0)
    with gzip.open(layer) if compressed else layer as content:
        return sum(len(block) for block in iter(lambda: content.read(MB), b""))


def bill_of(tar: tarfile.TarFile, layers: Sequence[str]) -> bytes:
    """Return the file that one of the last layers has; steps without files may follow."""
    for layer in reversed(layers):
        with tarfile.open(fileobj=member(tar, layer)) as files:
            for entry in files:
                if Path(entry.name).name == BILL:
                    return member(files, entry.name).read()
    sys.exit(f"images: no layer has {BILL}")


def table(images: Mapping[str, Image]) -> str:
    """Sizes as a table in Markdown, uncompressed, in MB of 1,000,000 bytes."""
    users = Counter(digest for image in images.values() for digest in image.layers)
    lines = ["| image | MB | of these only in this image |", "|---|---|---|"]
    for name, image in images.items():
        own = sum(size for digest, size in image.layers.items() if users[digest] == 1)
        lines.append(f"| {name} | {image.size / MB:.0f} | {own / MB:.1f} |")
    services = [name for name in NODE if name in images]
    stored = {digest: size for name in services for digest, size in images[name].layers.items()}
    shared = [f"{size / MB:.1f}" for digest, size in stored.items() if users[digest] > 1]
    if shared:
        lines += ["", f"Layers that images share: {' + '.join(shared)} MB."]
    lines += ["", f"On a node with {', '.join(services)}: **{sum(stored.values()) / MB:.0f} MB**."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build all images and print their sizes.")
    parser.add_argument("--engine", default="", help="buildah, podman or docker, with options")
    parser.add_argument("--options", default="", help="options for each build")
    parser.add_argument("--only", default=" ".join(IMAGES), help="names of images")
    parser.add_argument("--tag", default="0.1.0", help="tag of the images")
    parser.add_argument("--prefix", default="docker.io/rockoon", help="registry and folder")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for bills of materials")
    parser.add_argument("--save", type=Path, help="folder for an archive of each image")
    parser.add_argument("--twice", action="store_true", help="build again; digests must be equal")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    names = options.only.replace(",", " ").split()
    if unknown := set(names) - set(IMAGES):
        parser.error(f"no such image: {', '.join(unknown)}; there are {', '.join(IMAGES)}")
    builder = engine(options.engine)
    words = shlex.split(options.options)
    images: dict[str, Image] = {}
    for name in names:
        reference = f"{options.prefix}/{name}:{options.tag}"
        builder.build(name, reference, words)
        images[name] = builder.image(reference, options.save and options.save / f"{name}.tar")
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.cdx.json").write_bytes(images[name].bill)
        print(f"{reference}  sha256:{images[name].identity[:12]}", flush=True)
        if options.twice:
            builder.build(name, f"{reference}-again", [*words, "--no-cache"])
            again = builder.image(f"{reference}-again", None)
            if again != images[name]:
                difference = differences(again, images[name])
                sys.exit(f"images: the second build of {name} differs:\n{difference}")
    print(made := table(images))
    if options.write:
        tables.write(PAGE, made)
    return 0


def differences(one: Image, two: Image) -> str:
    pairs = zip(one.layers, two.layers, strict=False)
    lines = [f"{first} and {second}" for first, second in pairs if first != second]
    return "\n".join(lines) or "all layers are equal, the configuration is not"


if __name__ == "__main__":
    sys.exit(main())
