"""Devices: inventory, allocation, vendors, telemetry."""
