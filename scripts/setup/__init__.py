"""Before anything runs: files of conf, downloads, roles of models, replay, exit codes."""
