"""What ``evenload bench``, its commands and the scripts in ``benchmarks/`` measure: each measurement once.

Imports nothing: a benchmark that times imports takes its peers from here.
"""
