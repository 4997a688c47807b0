"""Real records: their data, a model for each, and predictions without a model to compare with."""
