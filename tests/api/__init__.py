"""Tests of the table of torch's API."""
