"""Language models behind one protocol: `submit(request) -> Future[Completion]`."""
