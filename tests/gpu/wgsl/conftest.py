"""The adapter that the tests of this folder share."""

from wgsl_adapter import context as context
