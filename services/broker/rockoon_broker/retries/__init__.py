"""Failed messages: stored again for another try, or as dead letters."""
