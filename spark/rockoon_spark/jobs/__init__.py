"""What runs over a whole log. Each job is a function of a session, and a command."""
