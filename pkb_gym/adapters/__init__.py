"""Foreign frameworks: their protocol on one side, `SubmissionSession` on the other, and no verdicts in between."""
