"""Layers have the same bytes in each build, and bills of materials name all components."""

import json
import marshal
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from support.kernels import is_compiled

DOCKER = Path(__file__).parents[2] / "deploy/docker"
LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
SECONDS = 315532800
UNCHECKED_HASH = b"\x01\x00\x00\x00"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10

Package: libperl5.36
Status: install ok installed
Architecture: amd64
Version: 5.36.0-7
"""


def write(path: Path, content: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def make_layer(kind: str, folder: Path) -> dict[str, tuple[int, bytes]]:
    """Run `layer.py`; returns time and content of each file that it leaves."""
    subprocess.run(
        [sys.executable, DOCKER / "layer.py", kind, folder],
        env=os.environ | {"SOURCE_DATE_EPOCH": str(SECONDS), "PYTHONHASHSEED": "0"},
        check=True,
    )
    return {
        str(path.relative_to(folder)): (int(path.stat().st_mtime), path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def packages(folder: Path) -> Path:
    """An environment with one package; an image needs only its code."""
    package = folder / LIBRARY / "site-packages/coffee"
    write(package / "__init__.py", "NAMES = {'a', 'b'}\ndef f(): return ('coffee', NAMES)\n")
    write(package / "__init__.pyi")
    write(package / "tests/test_coffee.py")
    write(package / "include/coffee.h")
    write(package / "__pycache__/other.cpython-311.pyc")
    return folder


def test_two_builds_of_a_layer_are_equal_and_have_no_tests_and_no_headers(tmp_path: Path) -> None:
    one = packages(tmp_path / "one/rockoon")
    two = packages(tmp_path / "two/rockoon")
    for path in two.rglob("*"):
        os.utime(path, (SECONDS + 1, SECONDS + 1))
    made = make_layer("packages", one)
    assert made == make_layer("packages", two)
    name = f"__init__.{sys.implementation.cache_tag}.pyc"
    site = f"{LIBRARY}/site-packages/coffee"
    assert made.keys() == {f"{site}/__init__.py", f"{site}/__pycache__/{name}"}
    seconds, compiled = made[f"{site}/__pycache__/{name}"]
    assert seconds == SECONDS
    assert compiled[4:8] == UNCHECKED_HASH
    assert marshal.loads(compiled[16:]).co_filename == f"/rockoon/{site}/__init__.py"


def test_a_jar_keeps_native_code_for_this_machine(tmp_path: Path) -> None:
    jar = tmp_path / "rockoon" / LIBRARY / "site-packages/jars/natives.jar"
    jar.parent.mkdir(parents=True)
    kept = {
        "x86_64": [
            "librocksdbjni-linux64.so",
            "linux/amd64/libzstd.so",
            "native/libepoll_x86_64.so",
        ],
        "aarch64": ["librocksdbjni-linux-aarch64.so", "linux/aarch64/libzstd.so"],
    }
    others = [
        "librocksdbjni-linux64-musl.so",
        "librocksdbjni-osx-x86_64.jnilib",
        "win/amd64/libzstd.dll",
    ]
    others += ["Linux/ppc64/libzstd.so", "Mac/x86_64/lib.jnilib", "FreeBSD/x86_64/lib.so"]
    names = [
        *others,
        *(name for each in kept.values() for name in each),
        "org/rocksdb/win/Arm.class",
    ]
    with zipfile.ZipFile(jar, "w") as made:
        for name in names:
            made.writestr(name, name)
    make_layer("packages", tmp_path / "rockoon")
    with zipfile.ZipFile(jar) as made:
        expected = [*kept[platform.machine()], "org/rocksdb/win/Arm.class"]
        assert {name: made.read(name).decode() for name in made.namelist()} == {
            name: name for name in expected
        }


def test_a_module_that_does_not_compile_ends_the_build(tmp_path: Path) -> None:
    write(tmp_path / "rockoon" / LIBRARY / "coffee.py", "def")
    with pytest.raises(subprocess.CalledProcessError):
        make_layer("packages", tmp_path / "rockoon")


@pytest.mark.skipif(not shutil.which("strip"), reason="needs binutils")
def test_native_libraries_are_smaller_and_load(tmp_path: Path) -> None:
    """Debian's `strip` makes NumPy's OpenBLAS, which patchelf has changed, unusable."""
    site = tmp_path / "rockoon" / LIBRARY / "site-packages"
    installed = Path(sysconfig.get_path("platlib"))
    write(site / "empty.py")
    for folder in ("numpy.libs", "uvloop"):
        shutil.copytree(installed / folder, site / folder, symlinks=True)
    before = {path: path.stat().st_size for path in site.rglob("*.so*")}
    make_layer("packages", tmp_path / "rockoon")
    assert sum(path.stat().st_size for path in before) < sum(before.values()) * 0.8
    load = "import ctypes, sys; [ctypes.CDLL(name) for name in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", load, *sorted(site.glob("numpy.libs/*"))], check=True)
    program = [sys.executable, "-S", "-c", "import uvloop.loop; print(uvloop.loop.__file__)"]
    done = subprocess.run(
        program,
        env={"PYTHONPATH": f"{site}:{installed}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(site))


def test_the_base_has_no_perl_and_no_pip_and_its_list_of_packages_agrees(tmp_path: Path) -> None:
    root = tmp_path / "layer"
    write(root / "var/lib/dpkg/status", STATUS)
    write(root / "var/lib/dpkg/info/libperl5.36:amd64.list", "/.\n/lib\n/lib/libperl.so\n")
    write(root / "usr/lib/libperl.so", "perl")
    write(root / "usr/lib/libc.so", "libc")
    (root / "lib").symlink_to("usr/lib")
    write(root / f"usr/local/{LIBRARY}/os.py", "PATH = 1\n")
    write(root / f"usr/local/{LIBRARY}/site-packages/pip/__init__.py")
    write(root / f"usr/local/{LIBRARY}/ensurepip/__init__.py")
    write(root / "usr/local/bin/pip3.11")
    made = make_layer("python", root)
    assert made.keys() == {
        "usr/lib/libc.so",
        f"usr/local/{LIBRARY}/os.py",
        f"usr/local/{LIBRARY}/__pycache__/os.{sys.implementation.cache_tag}.pyc",
        "var/lib/dpkg/status",
    }
    assert (root / "lib").is_symlink()
    assert b"libc6" in made["var/lib/dpkg/status"][1]
    assert b"perl" not in made["var/lib/dpkg/status"][1]


def bill(*words: str | Path) -> dict[str, dict[str, object]]:
    """Components of a bill of materials by their package URL."""
    program = [sys.executable, DOCKER / "sbom.py", "rockoon/broker", *words]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    again = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout == again.stdout
    document = json.loads(done.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    components = {each["purl"]: each for each in document["components"]}
    assert len(components) == len(document["components"])
    assert all(
        {"type", "name", "version", "bom-ref"} <= each.keys() for each in components.values()
    )
    return components


def test_a_bill_names_packages_of_python_rust_and_debian(tmp_path: Path) -> None:
    write(tmp_path / "status", STATUS)
    site = sysconfig.get_path("platlib")
    found = bill("--packages", site, "--debian", tmp_path / "status")
    assert f"pkg:pypi/numpy@{version('numpy')}" in found
    assert f"pkg:pypi/rockoon-broker@{version('rockoon-broker')}" in found
    assert found[f"pkg:pypi/h2@{version('h2')}"]["licenses"] == [{"expression": "MIT"}]
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10" in found
    if is_compiled():
        assert any(purl.startswith("pkg:cargo/h2@") for purl in found)


def test_a_bill_names_jars_and_modules_of_go(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    with zipfile.ZipFile(tmp_path / "jars/spark-sql_2.13-4.3.0.jar", "w") as jar:
        fields = "version=4.3.0\ngroupId=org.apache.spark\nartifactId=spark-sql_2.13\n"
        jar.writestr("META-INF/maven/org.apache.spark/spark-sql_2.13/pom.properties", fields)
    with zipfile.ZipFile(tmp_path / "jars/icu4j-78.3.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "")
    write(
        tmp_path / "go",
        "/etcd: go1.24.1\n\tpath\trockoon/etcd\n\tdep\tgo.uber.org/zap\tv1.27.0\th1:x=\n",
    )
    found = bill("--jars", tmp_path / "jars", "--go", tmp_path / "go")
    assert found.keys() == {
        "pkg:maven/org.apache.spark/spark-sql_2.13@4.3.0",
        "pkg:generic/icu4j@78.3",
        "pkg:golang/stdlib@1.24.1",
        "pkg:golang/go.uber.org/zap@v1.27.0",
    }
