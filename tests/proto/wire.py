"""The wire as it is: every field's number and type, as lines.

`PYTHONPATH=tests python -m proto.wire` writes `wire.txt` again, after fields were added.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

import rockoon_proto.v1

LINES = Path(__file__).with_name("wire.txt")
_TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def wire() -> list[str]:
    """Sorted lines: `Message.number type name`, `Enum.number name` and `Service.Method in out`."""
    folder = Path(rockoon_proto.v1.__path__[0])
    modules = sorted(path.stem for path in folder.glob("*_pb2.py"))
    return sorted(
        line
        for module in modules
        for line in _of_file(importlib.import_module(f"rockoon_proto.v1.{module}").DESCRIPTOR)
    )


def _of_file(file: FileDescriptor) -> Iterator[str]:
    for message in file.message_types_by_name.values():
        yield from _of_message(message)
    for enum in file.enum_types_by_name.values():
        yield from (f"{enum.name}.{value.number} {value.name}" for value in enum.values)
    for service in file.services_by_name.values():
        for method in service.methods:
            sent, answered = method.input_type.name, method.output_type.name
            streams = f"{'>' * method.client_streaming}{'<' * method.server_streaming}"
            yield f"{service.name}.{method.name} {sent} {answered} {streams}".rstrip()


def _of_message(message: Descriptor) -> Iterator[str]:
    name = message.full_name.removeprefix("rockoon.v1.")
    for field in message.fields:
        of = field.message_type or field.enum_type
        many = "repeated " if field.is_repeated else ""
        kind = of.full_name.removeprefix("rockoon.v1.") if of else _TYPES[field.type]
        yield f"{name}.{field.number} {many}{kind} {field.name}"
    for nested in message.nested_types:
        yield from _of_message(nested)


if __name__ == "__main__":
    LINES.write_text("".join(f"{line}\n" for line in wire()))
