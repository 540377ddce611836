"""Convolutions and max pooling of stacked clients by kernels of our own on CPUs: faster, never needed."""
