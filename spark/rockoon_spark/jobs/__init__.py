"""Jobs over whole logs. Each is a function with a Spark session as argument, and a command."""
