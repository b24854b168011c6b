"""CRDT types and the shared state."""
