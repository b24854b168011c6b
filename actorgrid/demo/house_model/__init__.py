"""The house's language model: a small network that has read the documentation, for demonstrations and tests.

The weights beside this file are under the Apache licence 2.0, as the documentation that they were learned from.
"""
