"""evenload where people already work: joblib, futures, datasets, generation, frames.

Each is one module on the public ``Executor`` that imports its library when it is used, and is reached by a
name of its own: ``evenload.joblib``, ``evenload.futures``, ``evenload.LLM``. The modules of these names
beside this room hold nothing but names.
"""
