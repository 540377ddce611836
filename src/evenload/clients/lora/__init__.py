"""Many small adapters (LoRA) of one frozen base model, trained in one fused step."""
