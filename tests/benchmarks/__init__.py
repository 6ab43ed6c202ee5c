"""What the generated scripts cost, as ratios. No tests: `make bench` runs them, and README.md has the figures."""
