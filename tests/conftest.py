"""Strict settings for every test: what JAX would let pass silently is an error here."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_platforms", "cpu")

hypothesis.settings.register_profile("evenhand", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("evenhand")
