"""Bugs planted on purpose, to see that the simulator finds them: each is a small subclass, none is near the product.

A checker that never failed proves nothing. ``catalogue`` lists them with the scenarios that catch them.
"""
