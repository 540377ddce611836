"""The stages that ship, one module each, named in ``job.builtin_stages``."""
