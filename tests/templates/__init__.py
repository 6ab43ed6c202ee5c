"""Tests of the generator and of the scripts that it writes."""
