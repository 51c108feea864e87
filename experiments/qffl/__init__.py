"""The experiment on q-FFL: ``python -m experiments.qffl``."""
