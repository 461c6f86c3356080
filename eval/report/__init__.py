"""Tables, figures and the published numbers beside ours."""
