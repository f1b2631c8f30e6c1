"""Failed messages: stored again for a retry, or as dead letters."""
