"""One file per vendor's API. Nothing here is imported before its device family is asked for."""
