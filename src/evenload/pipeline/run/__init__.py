"""One run of a job: the session, its loop, and what may change while it goes on."""
