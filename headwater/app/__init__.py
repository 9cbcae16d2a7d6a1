"""The use cases, and the client through which command line, REST, dashboard and pools plan deployments."""
