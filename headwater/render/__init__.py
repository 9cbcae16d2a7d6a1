"""What a terminal shows: values in, rich's renderables out; each module is of one concern."""
