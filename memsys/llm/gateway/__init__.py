"""The gateway: an OpenAI-compatible server on loopback in front of our cache, limits, retries and meter.

Any program that takes a base URL can be measured through it. `server.Gateway` serves, `accounts.Account` credits the calls of one
client to the step under way, `keys` says what of a request decides which reply it gets.
"""
