"""Adapters of placement and routing to engines. Each imports its engine only when it is installed into it.

vllm    policy classes for vLLM's expert-parallel load balancer
sglang  SGLang's placement function, and a class shaped like its LP solver
lplb    LPLB's ``Planner`` with the steps that its callers use one by one
layer   a mixture-of-experts layer in plain PyTorch with redundant experts
"""
