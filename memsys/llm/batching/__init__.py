"""Calls through the providers' batch API, at half the price: a journal in the cache file, requests to the provider, and the endpoint."""
