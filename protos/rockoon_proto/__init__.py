"""The wire: messages and services, generated from the .proto files.

Every package that uses gRPC imports this one before it.
"""

import os

# gRPC reads this when it is imported. By itself it also prints what is no error, such as that a
# server that restarts has said so (GOAWAY), into the output of every program.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

POLLING = "-event_engine_client,-event_engine_listener"


def poll_in_place() -> None:
    """Have gRPC look at its sockets in the thread that also tells of what has happened.

    By itself it has threads that look, and others for what they find: each message crosses three,
    which is a third of what a message alone costs. For processes that are ours, before gRPC is
    imported: it is one choice for all of a process. A choice of the user's stays.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", POLLING)
