"""Many trainings of one data set: sweeps over settings, cross-validation, ensembles."""
