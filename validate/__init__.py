"""The contract as code: a vocabulary of events, two observers, one rule book, the proofs and the reports."""
