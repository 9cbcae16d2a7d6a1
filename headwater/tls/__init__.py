"""TLS of all listeners and clients: own certificates, the choice for a listener, the verification of a server."""
