"""Typed settings and the YAML that ships."""
