"""Entry points only; run each as `python -m scripts.<name>`."""
