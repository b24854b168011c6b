"""The OTP layer: who starts, watches and restarts whom."""
