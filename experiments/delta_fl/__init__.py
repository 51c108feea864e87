"""The experiment on Delta-FL: ``python -m experiments.delta_fl``."""
