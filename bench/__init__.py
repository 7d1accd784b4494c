"""The figures: one script per question, each answer beside a ceiling of the same run."""
