"""Robust federated learning: RFA's claims, robust rivals under attack, and a map of who withstands what."""
