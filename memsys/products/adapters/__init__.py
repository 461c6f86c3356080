"""Adapters: each maps the steps of `memsys.products.worker` to one product. They run in the product's environment."""
