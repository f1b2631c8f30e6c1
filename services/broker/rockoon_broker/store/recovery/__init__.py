"""Recovery: from a directory in any state to a store that is known to be whole."""
