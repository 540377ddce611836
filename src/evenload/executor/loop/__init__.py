"""The loop that receives, asks the scheduler and sends; the devices and results that it owns."""
