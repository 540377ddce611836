"""How values travel between processes: frames on a pipe, arrays in shared memory."""
