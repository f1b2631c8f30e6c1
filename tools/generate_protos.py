"""Generate Python from protos/**/*.proto, or check that the committed code is current.

The folders equal the package (`protos/rockoon_proto/v1/broker.proto` is imported as
`rockoon_proto.v1.broker_pb2`), so the output of protoc needs no change.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "protos"
# google/protobuf/*.proto, shipped with the compiler.
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(output: Path) -> None:
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{WELL_KNOWN}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--python_out={output}",
        f"--pyi_out={output}",
        f"--grpc_python_out={output}",
        f"--mypy_grpc_out={output}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc refused the .proto files (see above)")


def generated_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.name.endswith(GENERATED)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, stored = generated_files(Path(folder)), generated_files(ROOT)
    stale = sorted(name for name in fresh | stored if fresh.get(name) != stored.get(name))
    if stale:
        print("generated code is stale, run `make protos`:", *stale, sep="\n  ")
        return 1
    print(f"generated code is current ({len(fresh)} files)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
