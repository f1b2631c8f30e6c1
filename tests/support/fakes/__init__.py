"""The services of a fake cluster, each in this process and this memory, on a port of its own."""
