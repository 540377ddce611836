"""Triton kernels: the router and the dispatcher on the device. Import them only where Triton is installed."""
