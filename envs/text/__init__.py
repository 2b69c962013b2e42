"""Texts: the task, the feedback on a submission, and their parts."""
