"""Rules that form batches, and loads for them, in virtual time."""
