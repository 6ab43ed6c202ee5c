"""Mirrors `validate/conversion/`."""
