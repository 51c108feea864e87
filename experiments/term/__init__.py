"""The ten applications of *On Tilted Losses in Machine Learning* (Li et al., JMLR 2023), one module per table."""
