"""Tests of `validate/fixes` and `validate/fixing.py`: mechanical repairs."""
