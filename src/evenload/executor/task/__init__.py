"""The task, the user's code: preparing and checking it, calling it, and describing its failures."""
