"""Calls through the providers' batch API, at half the price: a journal in the cache file, the provider's five requests, the endpoint."""
