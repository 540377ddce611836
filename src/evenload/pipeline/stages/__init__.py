"""The stages that ship, one file each, named in ``pipeline.kinds``. A worker imports the one that it runs."""
