"""Adaptation of a running deployment: SLOs, measurements, models, decisions. Pure."""
