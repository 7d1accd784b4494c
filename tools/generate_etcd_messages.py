"""Writes the classes of etcd's messages from ``src/fencelog/adapters/etcd/etcd.proto``.

After a change to that file, run it and commit what it writes::

    .venv/bin/python -m tools.generate_etcd_messages

protoc's own Python output is bound to the version of protobuf that made it, and its names clash
with those of other programs' etcd clients in one process. So the module holds the descriptor
and makes the classes from it in a pool of its own; protoc writes the types beside it. A test
compares what this writes with what is committed.
"""

import tempfile
from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parent.parent / "src/fencelog/adapters/etcd"
SOURCE = "etcd.proto"
MODULE = "messages.py"
STUB = "messages.pyi"
WIDTH = 80

HEAD = '''"""etcd's messages, of etcd.proto: written by tools/generate_etcd_messages.py."""

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_POOL = DescriptorPool()  # of its own: other clients in this process may have the same messages
_POOL.AddSerializedFile(
'''
STUB_HEAD = "# etcd's messages, of etcd.proto: written by tools/generate_etcd_messages.py.\n"


def generate() -> dict[str, str]:
    """Return the text of each file, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        described = folder / "descriptor"
        status = protoc.main(
            [
                "protoc",
                f"-I{FOLDER}",
                f"-I{files('grpc_tools') / '_proto'}",
                f"--descriptor_set_out={described}",
                f"--pyi_out={folder}",
                SOURCE,
            ]
        )
        if status != 0:
            raise SystemExit(f"protoc failed with status {status}")
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file
        stub = (folder / "etcd_pb2.pyi").read_text(encoding="utf-8")
    # protoc leaves the arguments of this type out, which strict checks do not bear.
    stub = stub.replace("_Mapping]", "_Mapping[str, object]]")
    return {MODULE: _module(file), STUB: STUB_HEAD + stub}


def _module(file: descriptor_pb2.FileDescriptorProto) -> str:
    data = file.SerializeToString(deterministic=True)
    rows = [data[at : at + WIDTH] for at in range(0, len(data), WIDTH)]
    classes = [
        f'{each.name} = GetMessageClass(_POOL.FindMessageTypeByName("{file.package}.{each.name}"))'
        for each in file.message_type
    ]
    return HEAD + "".join(f"    {row!r}\n" for row in rows) + ")\n\n" + "\n".join(classes) + "\n"


def main() -> None:
    """Write what ``generate`` returns."""
    for name, text in generate().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
