"""The search for a plan: candidates tried on a coarser problem, the best of them on the whole one."""
