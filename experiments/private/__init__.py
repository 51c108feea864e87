"""Experiments on private learning."""
