"""Commands and parts that follow a run while it goes on."""
