"""Training scripts with one mistake each, and how many of the mistakes `lint` and `validate` find."""
