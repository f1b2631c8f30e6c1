"""Progress: start positions, and stores of offsets."""
