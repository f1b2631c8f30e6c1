"""Wheels of all packages: `make wheels`.

The compiled kernel is an abi3 wheel for this platform, the same for all CPython versions from 3.11.
Its source distribution is for platforms without a wheel but with a Rust compiler. At the end an
empty virtual environment installs `rockoon[local]` from the wheels, and the build fails unless
`rockoon --version` names the compiled kernel.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL = ROOT / "format" / "kernel"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build and check wheels of all packages.")
    parser.add_argument("folders", nargs="+", help="folders of the packages in Python")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels")
    options = parser.parse_args()
    if shutil.which("cargo") is None:
        print(
            "wheels: there is no cargo on PATH: install Rust 1.83 or newer to compile the kernel. "
            "`make demo` and `make test` run without it"
        )
        return 1
    # pip might choose an old wheel in the folder.
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    build_python_wheels(options.folders, options.out)
    build_kernel(options.out)
    with tempfile.TemporaryDirectory(prefix="rockoon-wheels-") as folder:
        version = version_of_installed_wheels(Path(folder), options.out)
    print(f"{len(list(options.out.iterdir()))} files in {options.out}; in an empty environment:")
    print(version)
    return 0 if "(kernel: compiled)" in version else 1


def build_python_wheels(folders: list[str], out: Path) -> None:
    """Build from copies: setuptools keeps deleted modules in a `build` folder of the package."""
    with tempfile.TemporaryDirectory(prefix="rockoon-sources-") as temporary:
        copies = [Path(temporary, folder) for folder in folders]
        for folder, copy in zip(folders, copies, strict=True):
            ignored = shutil.ignore_patterns(
                "build", "*.egg-info", "__pycache__", "kernel", "target"
            )
            shutil.copytree(ROOT / folder, copy, ignore=ignored)
        pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), *copies)


def build_kernel(out: Path) -> None:
    # An environment that was made before Rust was installed has no maturin.
    pip(sys.executable, "install", "-c", str(ROOT / "constraints.txt"), "maturin")
    maturin = [sys.executable, "-m", "maturin"]
    target = os.environ | {"CARGO_TARGET_DIR": str(Path(sys.prefix) / "kernel")}
    for command in (["build", "--release", "--strip"], ["sdist"]):
        subprocess.run([*maturin, *command, "--out", out], cwd=KERNEL, env=target, check=True)


def version_of_installed_wheels(folder: Path, wheels: Path) -> str:
    """Return the output of `rockoon --version` after `pip install rockoon[local]`."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    pip(python, "install", "-c", constraints, "--find-links", wheels, "rockoon[local]")
    environment = {name: os.environ[name] for name in os.environ.keys() - {"ROCKOON_KERNEL"}}
    command = [str(folder / "bin" / "rockoon"), "--version"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return str(ran.stdout).strip()


def pip(python: str | Path, *arguments: str | Path) -> None:
    options = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", *arguments, *options], check=True)


if __name__ == "__main__":
    sys.exit(main())
