"""Use of a trained model: `load` reads it, `TrainedModel` predicts with it, `export` writes it for other runtimes."""
