"""What runs in a worker process, and how one is started."""
