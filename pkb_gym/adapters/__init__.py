"""Foreign frameworks, one folder each: their protocol on one side, `SubmissionSession` on the other. No verdicts here."""
