"""How a running job is steered from outside: where it is found, what it answers, what it is asked."""
