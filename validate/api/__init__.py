"""What torch's distributed API offers, release by release: `extract` makes the table, `table` reads it."""
