"""Python classes as services: what runs in a replica's process. Batching, the class, its HTTP door and its figures.

The control plane of services is elsewhere; nothing here knows of a cluster.
"""
