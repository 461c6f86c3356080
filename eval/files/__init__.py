"""What a run writes and reads back: records, fields, folders, provenance."""
