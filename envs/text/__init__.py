"""What is made into text: the task, the feedback on a submission, and their parts."""
