"""The files of a run: records, fields, folders, provenance."""
