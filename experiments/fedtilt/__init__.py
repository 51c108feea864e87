"""The experiment on FedTilt: ``python -m experiments.fedtilt``."""
