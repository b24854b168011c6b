"""Who waits, and in which order they are served."""
