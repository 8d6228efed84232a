"""What a job leaves behind: its journal, and what a person sees while it runs."""
