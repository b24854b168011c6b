"""Metrics and their Prometheus form."""
