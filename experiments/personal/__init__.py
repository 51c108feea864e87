"""Personal models: Ditto and its rivals, accuracy, fairness and robustness."""
