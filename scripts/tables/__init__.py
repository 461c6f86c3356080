"""Tables, sweeps and figures: their rows and columns, their runs, their captions."""
