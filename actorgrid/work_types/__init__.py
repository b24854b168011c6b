"""Types of work by name: what arguments each takes, as a schema, and which job they make.

An installed package adds one by an entry point of the group ``actorgrid.work_types``.
"""
