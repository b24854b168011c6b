"""What one host runs, in which order it starts and stops."""
