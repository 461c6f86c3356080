"""The gateway: an OpenAI-compatible server on loopback in front of our cache, limits, retries and meter.

Any program that takes a base URL can be measured through it. `server.Gateway` serves, `accounts.Account` credits the calls of one
client to the step under way, and `accounts.keyed` says which parts of a request determine its reply.
"""
