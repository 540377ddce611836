"""Worker processes: what runs in them, how they are started, and how the executor reaches them."""
