"""The observer of runs: hooks in each rank that write down events, and the merge of what the ranks wrote."""
