"""The OTP layer: servers and state machines, links and monitors, and supervisors that start and restart them."""
