"""The experiment on TERM over devices: ``python -m experiments.term_fl``."""
