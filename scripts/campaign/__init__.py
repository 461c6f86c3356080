"""The torture campaign (`python -m scripts.torture`): one module for each kind of harm, all held to the promises of `trial`."""
