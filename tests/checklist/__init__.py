"""Tests of `validate/checklist`."""
