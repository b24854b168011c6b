"""Alerts of our own, for clusters that nobody watches with Prometheus: rules, what fires, who is told."""
