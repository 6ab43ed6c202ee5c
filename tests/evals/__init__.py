"""The evals: well-formed, wrong at the start, solvable, and graded as they say."""
