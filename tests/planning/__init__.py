"""The verb `plan`: its figures against real runs, its formulas, and what it refuses."""
