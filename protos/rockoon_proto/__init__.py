"""The wire: messages and services, generated from the .proto files.

Every package that uses gRPC imports this one before it.
"""

import os

# gRPC reads this when it is imported. By itself it also prints what is no error, such as that a
# server that restarts has said so (GOAWAY), into the output of every program.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
