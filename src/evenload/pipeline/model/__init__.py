"""What a model needs: parameters and bytes, read from configs and headers without loading it."""
