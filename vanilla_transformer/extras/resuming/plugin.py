"""Answers from a file to a file that survive any end of the process."""

SEAMS = {"options": {"resuming": "resume_options:ResumeOptions"}}
