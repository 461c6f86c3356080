"""Memory systems and the services they use; knows `data_loaders.schema` and nothing above it."""
