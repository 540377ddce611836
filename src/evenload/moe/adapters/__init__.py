"""How placement and routing fit into engines. Each module imports its engine only when it is told to install
itself.

vllm    policy classes for vLLM's expert-parallel load balancer
sglang  SGLang's placement function, and a class shaped like its LP solver
lplb    LPLB's ``Planner`` with the steps that its callers use one by one
layer   a mixture-of-experts layer in plain PyTorch with redundant experts
"""
