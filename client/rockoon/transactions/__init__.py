"""Messages that are sent exactly when a local transaction commits."""
