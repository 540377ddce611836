"""What a worker process of a pipeline does: load models, run stages, park models, save results."""
