"""Training scripts, right and wrong, that the linter is measured on."""
