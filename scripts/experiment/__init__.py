"""From a configuration to finished tables, figures and sweeps: the library behind the Hydra entry points."""
