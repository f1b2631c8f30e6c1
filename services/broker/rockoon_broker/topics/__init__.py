"""Topics that this broker serves: from the routes, or from a file while no nameserver replies."""
