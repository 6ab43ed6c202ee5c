"""Mirrors `validate/checkpoint/`."""
