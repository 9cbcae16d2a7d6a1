"""The use cases, and the one client that command line, REST, dashboard and pools come to them by."""
