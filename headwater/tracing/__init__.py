"""Traces in the form of OpenTelemetry: contexts as values, and spans sent where a collector is configured."""
