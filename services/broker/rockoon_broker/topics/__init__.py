"""Topics served by this broker: from the routes, or from a file while no nameserver answers."""
