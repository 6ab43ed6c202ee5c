"""Mirrors `validate/`."""
