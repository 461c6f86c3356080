"""Memory systems and the services they use; imports `data_loaders.schema` and nothing above it."""
