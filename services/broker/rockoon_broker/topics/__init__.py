"""Topics that this broker serves: from the routes, and from a file while no nameserver answers."""
