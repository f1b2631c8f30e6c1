"""Whoever reads the wire finds a comment directly at everything that the .proto files declare."""

from collections.abc import Iterator
from pathlib import Path

import grpc_tools  # type: ignore[import-untyped]
import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
    SourceCodeInfo,
)
from grpc_tools import protoc  # type: ignore[import-untyped]

PROTOS = Path(__file__).resolve().parents[2] / "protos"
SOURCES = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))

# A declaration's name, and the field numbers and indices that lead to it in its file's descriptor
# (as SourceCodeInfo.Location.path counts them).
Declaration = tuple[str, tuple[int, ...]]


@pytest.mark.parametrize("source", SOURCES)
def test_every_declaration_of_the_wire_is_explained_where_it_stands(
    source: str, tmp_path: Path
) -> None:
    assert uncommented(PROTOS, source, tmp_path) == []


def test_what_lacks_a_comment_of_its_own_is_named(tmp_path: Path) -> None:
    (tmp_path / "bare.proto").write_text("""
        syntax = "proto3";
        package bare;
        service S { rpc R(M) returns (N); }

        // A heading, a blank line away from what follows.

        message M {
          // Explained above.
          int32 above = 1;
          int32 beside = 2;  // Explained on the same line.
          int32 without = 3;
          // Under a field, above nothing: it explains neither.

          oneof choice {
            //
            bool blank = 4;
          }
          optional int32 maybe = 5;
          map<string, string> pairs = 6;
          enum Inner { ZERO = 0; }
        }
        // Explained above.
        message N {}
    """)
    assert uncommented(tmp_path, "bare.proto", tmp_path) == [
        "bare.M",
        "bare.M.without",
        "bare.M.blank",
        "bare.M.maybe",
        "bare.M.pairs",
        "bare.M.choice",
        "bare.M.Inner",
        "bare.M.Inner.ZERO",
        "bare.S",
        "bare.S.R",
    ]


def uncommented(root: Path, source: str, folder: Path) -> list[str]:
    """The full names of what `source` declares without a comment, in the descriptor's order."""
    descriptors = folder / "descriptors.pb"
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [
        f"-I{root}",
        f"-I{well_known}",
        "--include_source_info",
        f"--descriptor_set_out={descriptors}",
    ]
    assert protoc.main(["protoc", *arguments, source]) == 0
    (file,) = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    lines = (root / source).read_text().splitlines()
    explained = {
        tuple(place.path) for place in file.source_code_info.location if is_explained(place, lines)
    }
    return [name for name, path in declarations(file) if path not in explained]


def is_explained(place: SourceCodeInfo.Location, lines: list[str]) -> bool:
    if place.leading_comments.strip():
        return True
    # protoc also calls "trailing" what stands below a declaration; only the same line counts.
    end_line = place.span[2] if len(place.span) == 4 else place.span[0]
    beside = lines[end_line][place.span[-1] :]
    return "//" in beside and place.trailing_comments.strip() != ""


def declarations(file: FileDescriptorProto) -> Iterator[Declaration]:
    for index, message in enumerate(file.message_type):
        path = (FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, index)
        yield from message_declarations(message, file.package, path)
    for index, enum in enumerate(file.enum_type):
        path = (FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, index)
        yield from enum_declarations(enum, file.package, path)
    for index, service in enumerate(file.service):
        path = (FileDescriptorProto.SERVICE_FIELD_NUMBER, index)
        name = f"{file.package}.{service.name}"
        yield name, path
        for number, method in enumerate(service.method):
            yield (
                f"{name}.{method.name}",
                (*path, ServiceDescriptorProto.METHOD_FIELD_NUMBER, number),
            )


def message_declarations(
    message: DescriptorProto, scope: str, path: tuple[int, ...]
) -> Iterator[Declaration]:
    if message.options.map_entry:  # protoc makes it for a map field; no source declares it
        return
    name = f"{scope}.{message.name}"
    yield name, path
    for index, field in enumerate(message.field):
        yield f"{name}.{field.name}", (*path, DescriptorProto.FIELD_FIELD_NUMBER, index)
    # An `optional` field has a oneof to itself that no source declares.
    made = {field.oneof_index for field in message.field if field.proto3_optional}
    for index, oneof in enumerate(message.oneof_decl):
        if index not in made:
            yield f"{name}.{oneof.name}", (*path, DescriptorProto.ONEOF_DECL_FIELD_NUMBER, index)
    for index, nested in enumerate(message.nested_type):
        nested_path = (*path, DescriptorProto.NESTED_TYPE_FIELD_NUMBER, index)
        yield from message_declarations(nested, name, nested_path)
    for index, enum in enumerate(message.enum_type):
        enum_path = (*path, DescriptorProto.ENUM_TYPE_FIELD_NUMBER, index)
        yield from enum_declarations(enum, name, enum_path)


def enum_declarations(
    enum: EnumDescriptorProto, scope: str, path: tuple[int, ...]
) -> Iterator[Declaration]:
    name = f"{scope}.{enum.name}"
    yield name, path
    for index, value in enumerate(enum.value):
        yield f"{name}.{value.name}", (*path, EnumDescriptorProto.VALUE_FIELD_NUMBER, index)
