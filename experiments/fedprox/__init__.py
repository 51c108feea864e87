"""The experiment on FedProx: ``python -m experiments.fedprox``."""
