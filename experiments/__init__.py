"""Experiments on the claims of papers, one per folder, to be run from the root of the repository."""
