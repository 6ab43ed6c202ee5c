"""What the reference pages say is run, and what they name is there."""
