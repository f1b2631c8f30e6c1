"""Recovery: brings a directory in any state back to a consistent store."""
