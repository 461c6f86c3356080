"""What runs show beyond their scores: costs, losses, budgets, growth, leaks."""
