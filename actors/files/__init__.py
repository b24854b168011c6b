"""Small files of a host's data directory, written whole and read with care."""
