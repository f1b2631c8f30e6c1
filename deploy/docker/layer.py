"""Make a folder ready to become a layer of an image; stages of the Dockerfile run it.

    layer.py python FOLDER     # a root file system with Python in /usr/local
    layer.py packages FOLDER   # an environment
    layer.py files FOLDER      # other files

It removes files that a service never reads, strips native libraries, compiles byte code, and sets
the times of all files. Byte code contains the hash of its source, and Python does not compare them.
So it is valid with any file time, and two builds write the same bytes.
"""

import compileall
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
ELF = b"\x7fELF"
ELF_64 = 2
PT_LOAD = 1
# Debian's packages that only install packages, log users in or manage disks, with their libraries.
NEEDLESS_DEBIAN = re.compile(
    "adduser|apt|debconf.*|debian-archive-keyring|dpkg|gpgv|perl.*|usrmerge|.*-perl"
    "|e2fsprogs|init-system-helpers|login.*|logsave|mount|passwd|sysvinit-utils|util-linux.*"
    "|lib(apt-pkg|blkid|ext2fs|gcrypt|gnutls|gpg-error|hogweed|idn2|mount|nettle|p11-kit|perl)[-.0-9].*"
    "|lib(semanage|sepol|smartcols|ss|tasn1|udev|unistring)[-.0-9].*"
)
STATUS = "var/lib/dpkg/status"
# Relative to the folder. gconv has converters of character sets; Python has its own.
NEEDLESS_IN_SYSTEM = (
    *("usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/locale/*"),
    *(
        "var/cache/*",
        "var/lib/apt/lists/*",
        "var/lib/dpkg/info",
        "var/lib/dpkg/*-old",
        "usr/lib/*/gconv",
        "var/log/*",
        "tmp/*",
        "root/.[!.]*",
    ),
    *("usr/local/include", "usr/local/share/man", "usr/local/lib/pkgconfig", "usr/local/lib/*.a"),
    *(f"usr/local/bin/{name}*" for name in ("pip", "wheel", "idle", "2to3", "pydoc")),
    *("usr/local/bin/python*-config", f"usr/local/{LIBRARY}/config-*"),
    f"usr/local/{LIBRARY}/site-packages/*",
    *(
        f"usr/local/{LIBRARY}/{name}"
        for name in (
            "ensurepip",
            "idlelib",
            "lib2to3",
            "pydoc_data",
            "test",
            "tkinter",
            "turtledemo",
        )
    ),
    *(
        f"usr/local/{LIBRARY}/lib-dynload/{name}.*"
        for name in ("_test*", "_ctypes_test", "_tkinter")
    ),
)
# At any depth of a package; programs that import the package do not read these files.
NEEDLESS_IN_PACKAGES = (
    *("tests", "*.pyi", "*.h", "*.hpp", "*.a", "*.pxd", "*.pxi", "*.pyx", "*.c", "*.cc", "*.cpp"),
    # Arrow's server, which no other library of Arrow needs, and its tests.
    *("libarrow*flight*", "_flight.*", "_pyarrow_cpp_tests.*"),
)
# Native code in jars for other systems and processors.
NATIVE_IN_JAR = re.compile(r".*\.(a|dll|dylib|jnilib|so)")
PROCESSORS = {
    "x86_64": "x86_64|amd64|linux64",
    "aarch64": "aarch_?64|arm64",
    "others": "i386|linux32|/x86/|/arm|ppc|s390|riscv|loongarch|mips",
}
SYSTEMS = r"\.(a|dll|dylib|jnilib)$|aix|android|darwin|freebsd|mac|musl|osx|sunos|win(dows)?[-_/36]"


def main(kind: str, folder: Path) -> None:
    code, root = folder, folder.parent
    if kind == "python":
        remove_debian(folder)
        remove(path for pattern in NEEDLESS_IN_SYSTEM for path in folder.glob(pattern))
        code, root = folder / "usr/local" / LIBRARY, folder
    elif kind == "packages":
        code = folder / LIBRARY
        remove(path for pattern in NEEDLESS_IN_PACKAGES for path in code.rglob(pattern))
    remove(folder.rglob("__pycache__"))
    if kind != "files":
        strip(folder)
        for jar in folder.rglob("*.jar"):
            thin(jar)
    compile_code(code, root)
    set_times(folder, int(os.environ["SOURCE_DATE_EPOCH"]))


def remove_debian(root: Path) -> None:
    """Remove packages of Debian, also from its list, which scanners read."""
    kept = []
    for paragraph in (root / STATUS).read_text().split("\n\n"):
        fields = dict(re.findall(r"^(Package|Architecture): (.*)$", paragraph, re.MULTILINE))
        name = fields.get("Package", "")
        if not NEEDLESS_DEBIAN.fullmatch(name):
            kept.append(paragraph)
            continue
        info = root / "var/lib/dpkg/info"
        listing = info / f"{name}.list"
        if not listing.exists():
            listing = info / f"{name}:{fields['Architecture']}.list"
        paths = [root / line.lstrip("/") for line in listing.read_text().splitlines()]
        # The list names directories too, and /lib, a link to one, belongs to all packages.
        remove(path for path in paths if not path.is_dir() and os.path.lexists(path))
    (root / STATUS).write_text("\n\n".join(kept))


def remove(paths: Iterator[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def strip(folder: Path) -> None:
    """Remove symbols and debug information, which only a debugger reads, from native code."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.open("rb").read(len(ELF)) == ELF:
            stripped = path.with_name(f"{path.name}.stripped")
            subprocess.run(["strip", "--strip-unneeded", "-o", stripped, path], check=True)
            if can_be_loaded(stripped):
                shutil.copymode(path, stripped)
                stripped.replace(path)
            else:
                stripped.unlink()


def can_be_loaded(path: Path) -> bool:
    """Whether segments have the offsets that the loader needs; `strip` moves those of patchelf."""
    content = path.read_bytes()
    if content[4] != ELF_64:
        return False
    (table,) = struct.unpack_from("<Q", content, 0x20)
    size, count = struct.unpack_from("<HH", content, 0x36)
    for start in range(table, table + size * count, size):
        kind, _, offset, address, *_, align = struct.unpack_from("<IIQQQQQQ", content, start)
        if kind == PT_LOAD and (address - offset) % max(align, 1):
            return False
    return True


def thin(jar: Path) -> None:
    """Remove native code for other systems and processors from a jar."""
    foreign = "|".join(PROCESSORS[name] for name in PROCESSORS.keys() - {platform.machine()})
    needless = re.compile(f"{SYSTEMS}|{foreign}", re.IGNORECASE)
    with zipfile.ZipFile(jar) as old:
        natives = [name for name in old.namelist() if NATIVE_IN_JAR.fullmatch(name)]
        removed = {name for name in natives if needless.search(f"/{name}")}
        if not removed:
            return
        thinner = jar.with_name(f"{jar.name}.thin")
        with zipfile.ZipFile(thinner, "w", zipfile.ZIP_DEFLATED) as new:
            for entry in old.infolist():
                if entry.filename not in removed:
                    new.writestr(entry, old.read(entry))
    thinner.replace(jar)


def compile_code(code: Path, root: Path) -> None:
    """Compile in one process and in the order of names: other orders give other bytes."""
    if not compileall.compile_dir(
        code,
        maxlevels=100,
        quiet=1,
        stripdir=root,
        prependdir="/",
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    ):
        sys.exit(f"layer.py: a module below {code} does not compile; see above")


def set_times(folder: Path, seconds: int) -> None:
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (seconds, seconds), follow_symlinks=False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
