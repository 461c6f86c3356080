"""From settings to runs: models, data sets, memories, scorers, the plan, and the steps that execute them."""
