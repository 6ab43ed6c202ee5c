"""Mirrors the folders of the skill."""
