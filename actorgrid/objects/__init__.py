"""A process's side of the object store: references, what they stand for, and values that lie in shared memory."""
