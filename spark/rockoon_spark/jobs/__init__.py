"""Jobs over whole logs. Each is a function of a session, and a command."""
