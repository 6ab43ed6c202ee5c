"""The generator: its options, its templates, and the verb `generate`."""
