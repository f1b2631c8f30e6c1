"""Access keys of a service: authentication of callers and their permissions."""
