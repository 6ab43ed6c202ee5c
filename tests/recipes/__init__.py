"""The recipes do what they say."""
