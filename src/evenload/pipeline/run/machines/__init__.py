"""The machines of a run: its devices, what each machine sees of the job, and files that go to and fro."""
