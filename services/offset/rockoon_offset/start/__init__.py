"""Start positions: where a reader begins on a queue, decided once and stored."""
